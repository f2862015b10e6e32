"""A small stage with everything a stage can have, and its input; also a script."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline.artifacts.plan import in_shards
from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.columns import LABELS, VALUES
from pipeline.processes.worker import Worker
from pipeline.schema import TableSpec
from pipeline.settings import Section, runtime
from pipeline.tables import labels_table, values_table
from pipeline.types import Label


class Run(Section):
    name: str = Field("r", description="folder")
    seed: int = Field(0, description="seed")
    data_dir: str = runtime("data", description="where")
    tracking: Literal["none", "wandb"] = runtime("none", description="service")


class Source(Section):
    value: float = Field(0.5, description="what every value is")


class Inner(Section):
    depth: int = Field(2, ge=1, description="semantic, nested")
    workers: int = runtime(1, ge=1, description="runtime, nested")


class Toy(Section):
    num_items: int = Field(7, ge=0, description="items")
    shard_size: int = Field(3, ge=1, description="items per shard")
    rate: float = Field(0.1, gt=0, description="a rate")
    kind: Literal["plain", "other"] = Field("plain", description="a choice")
    shares: dict[str, float] = Field({"a": 0.5, "b": 0.5}, description="a table")
    inner: Inner = Inner()
    note: str = runtime("", description="changes nothing")


class ToyConfig(Section):
    run: Run = Run()
    source: Source = Source()
    toy: Toy = Toy()


def stage_of(
    name: str,
    items: Sequence[Sequence[str]],
    make: Callable[[Start[Any]], None],
    tables: Sequence[TableSpec] = (),
    inputs: tuple[str, ...] = (),
) -> Stage[Any, None]:
    """Returns a stage of fixed items without settings."""
    return Stage(
        name,
        1,
        lambda config: inputs,
        (),
        lambda start: Plan(items=items, tables=tables, unit="items", work=None),
        lambda start, _: make(start),
    )


def make_source(start: Start[ToyConfig], value: float) -> None:
    for shard in start.shards.to_do():
        rows = [("r", 0, "bare", "c", value)]
        start.shards.commit(shard.index, {"values": values_table(rows)}, done=1)
    start.finish()


def plan_toy(start: Start[ToyConfig]) -> Plan[list[str]]:
    settings = start.config.toy
    ids = [f"item-{i}" for i in range(settings.num_items)]
    return Plan(
        items=in_shards(ids, settings.shard_size),
        tables=(VALUES, LABELS),
        unit="items",
        estimate={"rows": len(ids)},
        work=ids,
    )


def make_toy(start: Start[ToyConfig], ids: list[str]) -> None:
    settings = start.config.toy
    value = start.inputs["source"].table("values")["value"][0].as_py()
    checkpoint = start.checkpoints.latest()
    total = float(checkpoint[1]["total"]) if checkpoint else 0.0
    seen = int(checkpoint[1]["shards"]) if checkpoint else 0
    if checkpoint:
        assert (checkpoint[0] / "weights.txt").read_text() == str(total)
    signals = os.environ.get("TOY_SIGNALS", "")
    for shard in start.shards.to_do():
        for item in shard.item_ids:
            for _ in range(int(signals or 0) if item == "item-4" else 0):
                os.kill(os.getpid(), signal.SIGTERM)
            if os.environ.get("TOY_HANG") == item:
                Path(os.environ["TOY_HANG_FILE"]).write_text("here")
                time.sleep(60)
            start.shards.item_done()
            if os.environ.get("TOY_WORKER_AT") == item:
                lose_a_worker(os.environ["TOY_WORKER"])
        labels = [Label(i, 0, "bare", 1, 1, None, value, 1.0, "continuation", "p") for i in shard.item_ids]
        tables = {
            "values": values_table([(i, 0, "bare", "c", value * settings.rate) for i in shard.item_ids]),
            "labels": labels_table(labels),
        }
        failed = int(os.environ.get("TOY_FAILED", "0")) if shard.index == 0 else 0
        start.shards.commit(
            shard.index, tables, done=len(shard.item_ids) - failed, failed={"infra_error": failed}
        )
    for shard in list(start.shards)[seen:]:
        total += sum(start.shards.read(shard.index, "values")["value"].to_pylist())
        start.metrics({"update": shard.index, "total": total})
        text = str(total)
        start.checkpoints.save(
            shard.index + 1,
            lambda folder, text=text: (folder / "weights.txt").write_text(text),
            {"total": total, "shards": shard.index + 1},
        )
    (start.output("policy/weights.txt")).write_text(str(total))
    start.output("page.html", volatile=True).write_text(f"<p>{start.number}")
    mean = values_table([("mean", 0, "bare", "c", total / max(1, len(ids)))])
    start.finish(
        more_tables=[(VALUES_OF_ALL, mean)],
        report={"total": total, "opening": ["It went well."]},
        verdict={"ok": True},
    )


def lose_a_worker(how: str) -> None:
    """Waits for a worker that is killed, or ends itself over an error."""
    here = Path(__file__).parent
    worker = Worker("echo_worker", "w", env={"PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}"})
    worker.send(("say", "up"))
    worker.receive(60)
    if how == "killed and told to stop":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "failed":
        worker.send(("exit", 1))
    else:
        os.kill(worker.pid, signal.SIGKILL)
    worker.receive(60)


VALUES_OF_ALL = type(VALUES)("summary", VALUES.description, VALUES.columns, VALUES.id_columns)
SOURCE: Stage[ToyConfig, float] = Stage(
    "source",
    1,
    lambda config: (),
    ("source",),
    lambda start: Plan(items=[["only"]], tables=(VALUES,), unit="values", work=start.config.source.value),
    make_source,
)
TOY = Stage("toy", 1, lambda config: ("source",), ("toy",), plan_toy, make_toy)
STAGES: dict[str, Stage[Any, Any]] = {"source": SOURCE, "toy": TOY}


def run(name: str, *argv: str) -> int:
    return run_stage(STAGES[name], ToyConfig, argv)


def forked(environment: dict[str, str], name: str, argv: list[str]) -> int:
    """Runs one start in a child; returns its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        os.environ.update(environment)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 99
        try:
            code = run(name, *argv)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    # stdin: a JSON list of [environment, stage, argv]; stdout: exit codes. Forked here, where no thread runs.
    if sys.argv[1:] == ["forks"]:
        print(json.dumps([forked(*case) for case in json.load(sys.stdin)]))
    else:
        sys.exit(run(*sys.argv[1:]))
