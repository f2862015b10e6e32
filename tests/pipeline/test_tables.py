import dataclasses
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.columns import PAIRS, REFERENCE, ROLLOUTS, STEPS, TASKS, VALUES
from pipeline.errors import ArtifactError
from pipeline.schema import (
    Column,
    TableSpec,
    content_digest,
    list_of,
    read_parquet,
    struct_of,
    table_of,
    write_parquet,
)
from pipeline.steps import check_tiling
from pipeline.tables import (
    labels_from,
    labels_table,
    pairs_from,
    pairs_table,
    reference_from,
    reference_table,
    rollouts_from,
    rollouts_table,
    steps_table,
    tasks_from,
    tasks_table,
    values_table,
)
from pipeline.types import Event, Label, Step, Task
from tests.pairs import answer, pair
from tests.pipeline.toy import rollout

PROMPT = ({"role": "user", "content": "Grüße\u2028<b>"},)
DETAILS = {"z": [1, None, {"a": 2.5}], "a": True}
TASK = Task("t1", "phone", "train", 2, PROMPT, "rule", "key", "tools", "company-3", 7, DETAILS)
LABEL = Label("r0", 1, "bare", 8, 3, None, 0.4, 10.0, "continuation", "p")


def test_rollouts_come_back_from_parquet_as_they_were_steps_included(tmp_path: Path) -> None:
    failed = rollout(1, reward=None, env_status="infra_error", steps=(), events=(), messages=())
    rollouts = [rollout(0), failed, rollout(2)]
    write_parquet(rollouts_table(rollouts), ROLLOUTS, tmp_path / "r.parquet")
    write_parquet(steps_table(rollouts[::-1]), STEPS, tmp_path / "s.parquet")
    table = read_parquet(tmp_path / "r.parquet", ROLLOUTS)
    assert rollouts_from(table, read_parquet(tmp_path / "s.parquet", STEPS)) == rollouts
    # a slice has offsets into shared buffers
    assert rollouts_from(table.slice(2), read_parquet(tmp_path / "s.parquet", STEPS)) == rollouts[2:]


def test_tasks_labels_and_values_come_back_as_they_were(tmp_path: Path) -> None:
    write_parquet(tasks_table([TASK]), TASKS, tmp_path / "t.parquet")
    assert tasks_from(read_parquet(tmp_path / "t.parquet", TASKS)) == [TASK]
    labels = [LABEL, dataclasses.replace(LABEL, step_index=2, outcome=0.0)]
    assert labels_from(labels_table(labels)) == labels
    rows = [("r0", 0, "bare", "c", 0.5), ("r0", 0, "guided", "c", 0.25)]
    assert [tuple(row.values()) for row in values_table(rows).to_pylist()] == rows
    assert values_table([]).num_rows == 0
    assert labels_from(labels_table([])) == []


def test_token_ids_are_plain_and_logprobs_byte_stream_split(tmp_path: Path) -> None:
    write_parquet(rollouts_table([rollout(i) for i in range(3)]), ROLLOUTS, tmp_path / "r.parquet")
    group = pq.ParquetFile(tmp_path / "r.parquet").metadata.row_group(0)
    encodings = {
        group.column(i).path_in_schema: set(group.column(i).encodings) for i in range(group.num_columns)
    }
    ids, logprobs = encodings["response_token_ids.list.element"], encodings["logprobs.list.element"]
    assert "PLAIN" in ids
    assert not any("DICTIONARY" in name for name in ids)
    assert "BYTE_STREAM_SPLIT" in logprobs
    assert any("DICTIONARY" in name for name in encodings["policy_digest"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": (-0.5,)}, "lengths differ"),
        ({"loss_mask": (1, 1, 2, 1, 1)}, "loss_mask holds"),
        ({"logprobs": (-0.5, -0.25, -0.1, -1.0, 0.0)}, "token 2 was not sampled"),
        ({"messages": ({"role": "user", "text": "x"},)}, "message has keys"),
        ({"reward": "high"}, "rollouts.reward"),
        ({"seed": 2**63}, "rollouts.seed"),
        ({"logprobs": (-0.5, float("nan"), 0.0, -1.0, 0.0)}, "row 1, column logprobs"),
        ({"reward": float("inf")}, "row 1, column reward"),
        ({"finish_reason": "bored"}, "row 1, column finish_reason is 'bored'"),
        ({"rollout_id": "r0"}, "more than one row"),
        ({"env_status": None}, "row 1, column env_status is null"),
        ({"prompt_token_ids": (1, None)}, "row 1, column prompt_token_ids"),
        ({"messages": ({"role": None, "content": "x"},)}, "row 1, column messages"),
    ],
)
def test_a_rollout_that_cannot_be_trained_on_is_not_written(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        write_parquet(rollouts_table([rollout(0), rollout(1, **changes)]), ROLLOUTS, tmp_path / "r.parquet")


def test_schemas_are_checked_both_ways(tmp_path: Path) -> None:
    table = values_table([("r0", 0, "bare", "c", 0.5)])
    other = table.set_column(1, pa.field("step_index", pa.int64(), False), pa.array([0]))
    for bad, words in [
        (table.drop_columns(["value"]), "missing columns ['value: double not null'], unknown columns []"),
        (table.append_column("more", pa.array([1])), "missing columns [], unknown columns ['more: int64']"),
        (other, "['step_index: int32 not null'], unknown columns ['step_index: int64 not null']"),
        (table.select(["step_index", "rollout_id", "context", "critic", "value"]), "order must be"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            write_parquet(bad, VALUES, tmp_path / "bad.parquet")
        pq.write_table(bad, tmp_path / "bad.parquet")
        with pytest.raises(ArtifactError, match=re.escape(str(tmp_path / "bad.parquet"))):
            read_parquet(tmp_path / "bad.parquet", VALUES)


def test_every_cut_of_a_file_is_noticed_on_reading(tmp_path: Path) -> None:
    path = tmp_path / "v.parquet"
    write_parquet(values_table([(f"r{i}", 0, "bare", "c", i / 7) for i in range(200)]), VALUES, path)
    whole = path.read_bytes()
    for size in (0, 1, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match=re.escape(str(path))):
            read_parquet(path, VALUES)
    with pytest.raises(ArtifactError, match="missing"):
        read_parquet(tmp_path / "absent.parquet")


def test_the_content_digest_depends_on_values_alone(tmp_path: Path) -> None:
    rollouts = [rollout(i) for i in range(5)]
    table = rollouts_table(rollouts)
    ids = ROLLOUTS.id_columns
    digest = content_digest(table, ids)
    shuffled = pa.concat_tables([table.slice(3), table.slice(0, 3)])
    assert content_digest(shuffled, ids) == digest
    write_parquet(shuffled, ROLLOUTS, tmp_path / "r.parquet")
    assert content_digest(read_parquet(tmp_path / "r.parquet"), ids) == digest
    others = [
        rollout(0, reward=None),
        rollout(0, seed=1),
        rollout(0, guided=True),
        rollout(0, feedback_text="g"),
        rollout(0, loss_mask=(1, 1, 0, 1, 0)),
        rollout(0, response_token_ids=(1, 2, 3, 4, 6)),
        rollout(0, events=(Event("ok", 0, "sales", ("a", "c"), "d"), Event("probe", 1))),
        rollout(0, parent_rollout_ids=("",)),
    ]
    digests = {content_digest(rollouts_table([other, *rollouts[1:]]), ids) for other in others}
    assert len(digests - {digest}) == len(others)
    # Text that moves between rows is another table.
    first, second = ({"id": ["1", "2"], "text": texts} for texts in (["ab", "c"], ["a", "bc"]))
    assert content_digest(pa.table(first), ["id"]) != content_digest(pa.table(second), ["id"])


@pytest.mark.parametrize("piece_bytes", [1, 700, 2**30])
def test_the_content_digest_is_that_of_manifests_made_before(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows are hashed at a time: none at all, parts of bytes of validity bits, and all."""
    monkeypatch.setattr("pipeline.schema.PIECE_BYTES", piece_bytes)
    rollouts = [rollout(i, rollout_id=f"r{i * 7 % 19}", reward=None if i % 3 else -0.0) for i in range(19)]
    digests = [content_digest(rollouts_table(some), ROLLOUTS.id_columns) for some in (rollouts, [])]
    assert digests == ["a58c0d4323d1a6bace0e82af755c9cc1", "d4f78e31ada58ff1915ab92d919fe8a0"]
    odd = {"id": [2, 1, 3], "inner": [[{"a": None, "b": [1.5]}, None], None, []]}
    kind = pa.list_(pa.struct([("a", pa.string()), ("b", pa.list_(pa.float32()))]))
    odds = pa.table(odd, schema=pa.schema([("id", pa.int64()), ("inner", kind)]))
    assert content_digest(odds, ["id"]) == "a8aad108801d70495a6863ba0877eacb"


def test_steps_must_tile_exactly_the_sampled_tokens() -> None:
    check_tiling(rollout(0))
    for steps in [
        (Step(0, 0, 0, 2, "a"),),
        (Step(0, 0, 0, 3, "a"), Step(1, 1, 3, 5, "b")),
        (Step(0, 0, 0, 2, "a"), Step(2, 2, 3, 5, "b")),
        (Step(0, 0, 0, 2, "a"), Step(1, 1, 3, 6, "b")),
        (Step(0, 0, 0, 2, "a"), Step(1, 1, 1, 5, "b")),
    ]:
        with pytest.raises(ValueError, match="rollout r0"):
            check_tiling(rollout(0, steps=steps))
    continuation = rollout(0, start_step_index=3, steps=(Step(3, 3, 0, 2, "a"), Step(4, 4, 3, 5, "b")))
    check_tiling(continuation)


def test_row_groups_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.schema.ROW_GROUP_BYTES", 10_000)
    text = np.random.default_rng(0).bytes(500).hex()
    table = values_table([(f"{i}{text}", 0, "bare", "c", 0.5) for i in range(100)])
    write_parquet(table, VALUES, tmp_path / "v.parquet")
    assert pq.read_metadata(tmp_path / "v.parquet").num_row_groups > 5
    assert read_parquet(tmp_path / "v.parquet", VALUES).equals(table)


@pytest.mark.slow
def test_a_column_may_hold_more_text_than_offsets_of_32_bits_can_tell(tmp_path: Path) -> None:
    """2 GiB: as much as half a million rollouts of 4 kB say, merged when their stage ends."""
    messages = Column("messages", list_of(struct_of(content=pa.string())), "what was said")
    spec = TableSpec("long", "", (Column("id", pa.int64(), "of the row"), messages), ("id",))
    part = table_of(spec, {"id": range(64), "messages": [[{"content": "x" * 2**20}]] * 64})
    parts = [part.set_column(0, spec.schema[0], [pa.array(range(k, k + 64))]) for k in range(0, 2304, 64)]
    table = pa.concat_tables(parts)
    assert table.nbytes > 2**31
    write_parquet(table, spec, tmp_path / "long.parquet")
    there = read_parquet(tmp_path / "long.parquet", spec)
    assert content_digest(there, ["id"]) == content_digest(table, ["id"])


def test_pairs_and_their_reference_come_back_from_parquet(tmp_path: Path) -> None:
    other = pair("b", answer("w", (5, 6), loss_mask=(0, 1), guided=True, prompt="Grüße\u2028"), margin=0.5)
    pairs = [pair("a"), other]
    write_parquet(pairs_table(pairs), PAIRS, tmp_path / "p.parquet")
    table = read_parquet(tmp_path / "p.parquet", PAIRS)
    assert pairs_from(table) == pairs
    assert pairs_from(table.slice(1)) == pairs[1:]
    rows = [("a", np.array([-1.0, -2.0]), np.array([-3.0])), ("b", np.array([0.0, -1.0]), np.array([-0.5]))]
    write_parquet(reference_table(rows), REFERENCE, tmp_path / "r.parquet")
    found = reference_from(read_parquet(tmp_path / "r.parquet", REFERENCE))
    assert {name: [x.tolist() for x in sides] for name, sides in found.items()} == {
        "a": [[-1.0, -2.0], [-3.0]],
        "b": [[0.0, -1.0], [-0.5]],
    }


@pytest.mark.parametrize("mask", [(1,), (0, 0), (1, 2)])
def test_an_answer_has_a_mask_for_its_tokens_that_trains_some(mask: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"pair a: answer w has 2 tokens .*allowed"):
        pairs_table([pair("a", answer("w", loss_mask=mask))])
