"""Shards and their ledger by themselves; `test_commit_protocol.py` crashes them in a stage."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.artifacts import ledger
from pipeline.artifacts.commit import Shards
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.progress import Progress
from pipeline.columns import VALUES
from pipeline.errors import ArtifactError
from pipeline.tables import values_table


def shards_in(folder: Path, items: Any = (("a", "b"), ("c",)), repair: bool = False) -> Shards:
    """Returns the shards of a stage, with what a folder's ledger says of them."""
    console = Console(file=io.StringIO())
    shards = Shards(
        folder,
        "s",
        "stage key",
        Plan(items=items, tables=(VALUES,), unit="items", work=None),
        say=lambda text: None,
        progress=lambda total, unit, done: Progress(console, unit, total, done),
        stop_if_asked=lambda: None,
    )
    shards.take_over(repair=repair)
    return shards


def rows(*items: str) -> dict[str, Any]:
    return {"values": values_table([(item, 0, "bare", "c", 0.5) for item in items])}


def test_of_a_shard_s_lines_the_last_generation_counts_and_a_torn_one_is_named(tmp_path: Path) -> None:
    for generation, done in enumerate((5, 6, 7)):
        assert ledger.next_generation(tmp_path, 3) == generation
        ledger.append(tmp_path, ledger.Entry(3, generation, {}, done))
        assert ledger.read(tmp_path)[0][3].done == done
    assert ledger.next_generation(tmp_path, 4) == 0
    ledger.append(tmp_path, ledger.Entry(3, 3, {}, 0, struck=True))
    assert ledger.read(tmp_path) == ({}, [])
    [path] = (tmp_path / "_ledger").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    entries, [warning] = ledger.read(tmp_path)
    assert entries[3].generation == 2
    assert "line 4 is torn or damaged" in warning


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"done": 1}, "every planned item must be counted once"),
        ({"done": 3}, "every planned item must be counted once"),
        ({"done": 3, "failed": {"x": -1}}, "every planned item must be counted once"),
        ({"done": 2, "tables": {}}, "got tables []; planned: ['values']"),
    ],
)
def test_a_commit_must_count_every_item(tmp_path: Path, counts: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        shards_in(tmp_path).commit(0, **{"tables": rows("a", "b"), **counts})


def test_a_shard_is_committed_once_unless_it_is_superseded(tmp_path: Path) -> None:
    shards = shards_in(tmp_path)
    shards.commit(0, rows("a"), done=0, failed={"x": 1}, skipped={"y": 1})
    with pytest.raises(ValueError, match="supersede=True"):
        shards.commit(0, rows("a", "b"), done=2)
    shards.commit(0, rows("a", "b"), done=2, supersede=True)
    later = shards_in(tmp_path)
    assert (later.is_committed(0), later.is_committed(1), later.missing) == (True, False, [1])
    assert later.table("values") == rows("a", "b")["values"]
    assert str(later.counts()) == "planned 3 != done 2 + failed 0 + skipped 0"
    later.commit(1, rows(), done=0, failed={"x": 1, "z": 0})
    assert str(later.counts()) == "planned 3 = done 2 + failed 1 (x 1) + skipped 0"


@pytest.mark.parametrize(("failed", "planned", "share"), [(1, 4, 0.25), (1, 1, 1.0), (0, 0, 0.0)])
def test_the_failed_share_is_of_what_was_planned(failed: int, planned: int, share: float) -> None:
    assert ledger.Counts(planned, planned - failed, {"x": failed}, {}).failed_share == share


@pytest.mark.parametrize(("num_items", "missing"), [(50, []), (49, [0])])
def test_a_repair_tries_again_if_more_than_a_fiftieth_failed(
    tmp_path: Path, num_items: int, missing: Any
) -> None:
    items = [[str(i) for i in range(num_items)]]
    shards_in(tmp_path, items=items).commit(0, rows(), done=num_items - 1, failed={"x": 1})
    assert shards_in(tmp_path, items=items).missing == []
    assert shards_in(tmp_path, items=items, repair=True).missing == missing


@pytest.mark.parametrize(("failed", "missing"), [(0, []), (1, [0, 2])])
def test_a_repair_that_tries_again_tries_what_was_skipped_whole_too(
    tmp_path: Path, failed: int, missing: Any
) -> None:
    """What is tried again may have decided that: a look at it, for one."""
    items = (("a", "b"), ("c", "d"), ("e",))
    shards = shards_in(tmp_path, items=items)
    shards.commit(0, rows(), done=2 - failed, failed={"x": failed})
    shards.commit(1, rows(), done=1, skipped={"y": 1})
    shards.commit(2, rows(), done=0, skipped={"y": 1})
    assert shards_in(tmp_path, items=items).missing == []
    assert shards_in(tmp_path, items=items, repair=True).missing == missing


def test_only_a_committed_shard_is_read_and_only_if_its_digest_is_right(tmp_path: Path) -> None:
    shards = shards_in(tmp_path)
    shards.commit(0, rows("a", "b"), done=2)
    for index, name in ((1, "values"), (0, "labels")):
        with pytest.raises(ArtifactError, match="is not committed"):
            shards.read(index, name)
    [path] = (tmp_path / "shards" / "values").iterdir()
    whole = path.read_bytes()
    at = whole.index(b"parquet-cpp")  # a comment: no reader would mind
    path.write_bytes(whole[:at] + b"P" + whole[at + 1 :])
    with pytest.raises(ArtifactError, match="SHA-256"):
        shards.read(0, "values")


def test_what_went_into_a_shard_is_known_to_later_starts(tmp_path: Path) -> None:
    shards = shards_in(tmp_path)
    shards.commit(0, rows("a", "b"), done=2, seconds=1.5)
    assert (shards.seconds_of(0), shards.seconds_of(1)) == (1.5, 0.0)
    later = shards_in(tmp_path)
    assert (later.seconds_of(0), later.seconds_of(1)) == (1.5, 0.0)
