"""The same command again: what is stale, damaged or of another version is told apart from what is sound."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import sealed, unsealed
from pipeline.artifacts.metrics import Metrics, read_metrics
from pipeline.columns import VALUES
from pipeline.runner import Start
from pipeline.tables import values_table
from tests.pipeline import toy
from tests.pipeline.test_runner import Run, data, half_done, made, run

__all__ = ["data", "half_done", "made", "run"]  # fixtures


def test_a_complete_stage_behind_a_stale_one_is_not_up_to_date(made: Path, run: Run) -> None:
    last = toy.stage_of("last", [], lambda start: start.finish(), inputs=("toy",))
    run(last)
    run("source", "source.value=0.75", "--fresh")
    run(last, code=3, words=["toy was made from source", "Run: make toy SET=--fresh"])


def test_a_damaged_plan_of_a_half_done_stage_is_set_aside_by_a_repair(half_done: Path, run: Run) -> None:
    plan = half_done / "r" / "toy" / "plan.json"
    plan.write_bytes(plan.read_bytes()[:-5])
    run("toy", code=3, words=[str(plan), "SET=--repair"])
    run("toy", "--repair", words=["the old folder is now", "complete"])
    assert (half_done / "r" / "_old" / "toy-000" / "plan.json").exists()


@pytest.mark.parametrize("name", ["manifest.json", "plan.json"])
def test_a_stage_of_another_version_is_no_damage(made: Path, run: Run, name: str) -> None:
    path = made / "r" / "toy" / name
    path.write_bytes(sealed({**unsealed(path), "schema_version": 1}))
    run("toy", "--repair", code=3, words=["was made by a version of this program", "another run"])
    assert path.exists()
    assert not (made / "r" / "_old").exists()


def test_a_line_of_metrics_is_not_lost_behind_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 0, "start": 0}\n{"update": 1, "lo')
    for update in (1, 2):
        Metrics(path, 1, pytest.fail).write({"update": update})
    assert [line["update"] for line in read_metrics(path)] == [0, 1, 2]


def test_a_stage_that_ends_has_one_table_in_memory_and_little_more(tmp_path: Path, run: Run) -> None:
    """Each is read from its shards, written, read back, and hashed in the order of its ids."""
    rows, specs = 20_000, [replace(VALUES, name=name) for name in ("first", "second")]
    sizes, pools = [], [pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())]

    def make(start: Start[Any]) -> None:
        for shard in start.shards.to_do():
            ids = [f"{(i * 7919) % rows:0200d}{shard.index}" for i in range(rows)]
            table = values_table([(each, 0, "bare", "c", 0.5) for each in ids])
            start.shards.commit(shard.index, {spec.name: table for spec in specs}, done=1)
            sizes.append(table.nbytes)
            del table
        pa.set_memory_pool(pools[1])
        try:
            start.finish()
        finally:
            pa.set_memory_pool(pools[0])

    run(toy.stage_of("s", [[f"s{i}"] for i in range(8)], make, specs))
    assert pools[1].max_memory() < 2.5 * sum(sizes)  # one column is nearly all of it
    Artifact.open(tmp_path / "r", "s").verify()
