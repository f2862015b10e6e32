"""What all exports share: filters, what is left out, what is refused, and that rows come a few at a time."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import schema
from pipeline.artifacts.artifact import Artifact
from pipeline.exports import files
from pipeline.exports.dialogues import dialogues
from pipeline.exports.selection import Selection
from pipeline.exports.sessions import sessions_in
from pipeline.tables import rollouts_table
from stages.command import main
from tests.exports import Made


def test_a_rollout_with_words_after_a_call_is_left_out_and_counted(made: Made) -> None:
    """The form of its messages would lose them, and what is left was never said so."""
    rollout = next(r for r in made.bare if any(m.get("tool_calls") for m in r.messages))
    wordy = tuple(
        {**m, "content": f"{m['content']}\nI wait." if m.get("tool_calls") else m["content"]}
        for m in rollout.messages
    )
    played = [rollout, replace(rollout, messages=wordy)]
    selection: Any = SimpleNamespace(
        run_dir=made.run_dir,
        rows=lambda columns: rollouts_table(played).to_pylist(),
        num_said=Selection(made.run_dir).num_said,
        split_of={},
        left_out=Counter(),
    )
    assert len(list(dialogues(selection))) == 1
    assert selection.left_out == {"words_after_call": 1}


def test_filters_take_splits_and_rewards_and_say_who_is_left_out(
    export: Any, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    def ids(*options: object) -> list[str]:
        lines = (export("openai", *options) / "facts.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line)["rollout_id"] for line in lines]

    assert ids("--min-reward", 0.5) == [r.rollout_id for r in made.bare if r.reward == 1.0]
    low = sum(r.reward is not None and r.reward < 0.5 for r in made.rollouts)
    assert f"left out: {low} low_reward" in capsys.readouterr().out
    assert ids("--split", "val") == [r.rollout_id for r in made.bare if r.task_id == "held out"]
    others = sum(r.task_id != "held out" for r in made.rollouts)
    assert f"left out: {others} other_split" in capsys.readouterr().out
    assert ids("--stage", "rollouts") == [r.rollout_id for r in made.bare]
    said = capsys.readouterr().out
    for kind in ("continuation", "cut_off", "guided", "ungraded (infra_error)"):
        assert f"left out: 1 {kind}" in said


def test_answers_in_a_task_s_own_prompt_are_not_the_policy_s(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    shots = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
    whole, rows = list(dialogues(Selection(made.run_dir))), Selection.rows

    def with_shots(self: Selection, columns: Any) -> Any:
        for row in rows(self, columns):
            nothing = {"tool_calls": None, "tool_call_id": None}
            yield row | {"messages": [*({**shot, **nothing} for shot in shots), *row["messages"]]}

    monkeypatch.setattr(Selection, "rows", with_shots)
    found = list(dialogues(Selection(made.run_dir)))
    assert [dialogue.completion for dialogue in found] == [dialogue.completion for dialogue in whole]
    assert [dialogue.prompt for dialogue in found] == [[*shots, *dialogue.prompt] for dialogue in whole]
    selection = Selection(made.run_dir)
    assert not list(sessions_in(selection))
    assert selection.left_out["answer_in_prompt"] == len(whole) + 1  # and the one that was cut off


def test_every_rollout_is_in_a_file_or_counted_under_it(
    export: Any, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pq.read_table(export("trl") / "siblings" / "siblings.parquet").to_pylist()
    said = capsys.readouterr().out.partition("siblings.parquet")[2].partition("tokens.parquet")[0]
    left_out = sum(map(int, re.findall(r"left out: (\d+)", said)))
    assert len({row[f"{side}_id"] for row in rows for side in ("chosen", "rejected")}) + left_out == len(
        made.rollouts
    )


def test_what_a_killed_export_leaves_is_refused_with_what_to_do(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "messages.jsonl.part").touch()
    assert main(["export", str(made.run_dir), "--to", "openai", str(tmp_path)]) == 2
    assert "remove the folder and give the same command again" in capsys.readouterr().err
    assert (tmp_path / "messages.jsonl.part").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["openai", "--split", "nope"], 2, "--split is 'nope'; this run's tasks have: train, val"),
        (["trl", "--min-reward", "nan"], 2, "--min-reward is nan; allowed: a finite number"),
        (["sqlite", "--split", "train"], 2, "takes whole tables"),
        (["datasets", "--min-reward", "1"], 2, "takes whole tables"),
        (["verl", "--stage", "actor"], 3, "Run: make actor"),
        (["sqlite", "--stage", "actor"], 3, "Run: make actor"),
        (["openai", "--stage", "tasks"], 3, "has no table 'rollouts'; it has: tasks"),
        (["openai", "--min-reward", "2"], 3, "rollouts left out: 33 low_reward, 1 ungraded (infra_error)"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_next_move(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, said: str
) -> None:
    folder = tmp_path / "new"
    assert main(["export", str(made.run_dir), "--to", *options, str(folder)]) == code
    assert said in capsys.readouterr().err
    assert not folder.exists() or not list(folder.iterdir())  # so the next command may use it


def test_an_unknown_form_is_refused_with_those_that_there_are(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(made.run_dir), "--to", "csv", str(tmp_path / "new")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    for form in ("datasets", "openai", "sessions", "sqlite", "trl", "verl"):
        assert form in said


@pytest.mark.parametrize("to", ["openai", "sessions", "sqlite", "trl", "verl"])
def test_rows_are_read_and_written_a_few_at_a_time(
    export: Any, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The files are the same, no table is read whole, and no batch is larger."""
    whole, sizes = export(to), []

    def refuse(self: Artifact, name: str) -> pa.Table:
        raise AssertionError(f"{name} is read whole")

    def batches(*args: Any, **more: Any) -> Any:
        for batch in read(*args, **more):
            sizes.append(batch.num_rows)
            yield batch

    read = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", batches)
    monkeypatch.setattr(Artifact, "table", refuse)
    for module in (schema, files):
        monkeypatch.setattr(module, "BATCH_ROWS", 4)
    few = export(to)
    assert max(sizes) == 4
    found = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert found == sorted(path.relative_to(few) for path in few.rglob("*") if path.is_file())
    for path in found:
        if path.suffix == ".parquet":
            assert pq.read_table(whole / path).equals(pq.read_table(few / path))
        elif path.suffix != ".sqlite":
            assert (whole / path).read_bytes() == (few / path).read_bytes()


def test_no_export_holds_a_path_of_this_machine(export: Any, made: Made) -> None:
    for to in ("openai", "sessions", "sqlite", "trl", "verl", "datasets"):
        for path in export(to).rglob("*"):
            if path.is_file() and path.suffix != ".parquet":
                assert str(made.run_dir.parent).encode() not in path.read_bytes()
            elif path.suffix == ".parquet":
                assert str(made.run_dir.parent) not in str(pq.read_table(path).to_pylist())
