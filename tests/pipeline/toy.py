"""A small stage with everything a stage can have, and its input; also a script."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline.artifacts.plan import in_shards
from pipeline.columns import LABELS, VALUES
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.schema import TableSpec
from pipeline.settings import Section, runtime
from pipeline.tables import labels_table, values_table
from pipeline.types import Event, Label, Rollout, Step
from tests.rollouts import rollout as plain_rollout


class Run(Section):
    name: str = "r"
    seed: int = 0
    data_dir: str = runtime("data", description="where")
    tracking: Literal["none", "wandb"] = runtime("none", description="service")
    patience: float = runtime(1.0, description="times")


class Source(Section):
    value: float = 0.5


class Inner(Section):
    depth: int = 2
    workers: int = runtime(1, description="nested")


class Toy(Section):
    num_items: int = Field(7, ge=0, description="items")
    shard_size: int = 3
    rate: float = 0.1
    kind: Literal["plain", "other"] = "plain"
    shares: dict[str, float] = Field({"a": 0.5, "b": 0.5}, description="a table")
    inner: Inner = Inner()
    note: str = runtime("", description="changes nothing")


class ToyConfig(Section):
    run: Run = Run()
    source: Source = Source()
    toy: Toy = Toy()


def rollout(number: int = 0, **changes: object) -> Rollout:
    """Returns a rollout with something in every column."""
    call = {"id": "c0", "function": {"z": "1", "a": "2"}}
    fields: dict[str, Any] = {
        "rollout_id": f"r{number}",
        "task_id": "t1",
        "attempt": number,
        "parent_rollout_ids": ("p1", "p2")[:number],
        "guided": number > 0,
        "messages": (
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "", "tool_call_id": "c0"},
        ),
        "prompt_token_ids": (5, 6),
        "response_token_ids": (1, 2, 3, 4, 5),
        "logprobs": (-0.5, -0.25, 0.0, -1.0, 0.0),
        "seed": 2**63 - 1,
        "policy_digest": "p",
        "finish_reason": "success",
        "events": (Event("ok", 0, "sales", ("a", "b"), "d"), Event("probe", 1)),
        "feedback_text": "f",
        "feedback_source": "rules/observed",
        "steps": (Step(0, 0, 0, 2, "first", "ok"), Step(1, 1, 3, 5, "second", "wrong", "probe", "why")),
    }
    return replace(plain_rollout((1, 1, 0, 1, 1)), **(fields | changes))


def config_in(folder: Path) -> str:
    """Writes a configuration of the run `r` in a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "c.yaml").write_text(f"run: {{data_dir: {folder}}}\n")
    return str(folder / "c.yaml")


def stage_of(
    name: str,
    items: Sequence[Sequence[str]],
    make: Callable[[Start[Any]], None],
    tables: Sequence[TableSpec] = (),
    inputs: tuple[str, ...] = (),
    unit: str = "items",
) -> Stage[Any, None]:
    """Returns a stage of fixed items without settings."""
    plan = Plan(items=items, tables=tables, unit=unit, work=None)
    return Stage(name, 1, lambda config: inputs, (), lambda start: plan, lambda start, _: make(start))


def make_source(start: Start[ToyConfig], value: float) -> None:
    for shard in start.shards.to_do():
        start.shards.commit(shard.index, {"values": values_table([("r", 0, "bare", "c", value)])}, done=1)
    start.finish()


def plan_toy(start: Start[ToyConfig]) -> Plan[list[str]]:
    ids = [f"item-{i}" for i in range(start.config.toy.num_items)]
    items = in_shards(ids, start.config.toy.shard_size)
    return Plan(items=items, tables=(VALUES, LABELS), unit="items", estimate={"rows": len(ids)}, work=ids)


def make_toy(start: Start[ToyConfig], ids: list[str]) -> None:
    value = start.inputs["source"].table("values")["value"][0].as_py()
    total, seen = 0.0, 0
    if checkpoint := start.checkpoints.latest():
        total, seen = float(checkpoint[1]["total"]), int(checkpoint[1]["shards"])
        assert (checkpoint[0] / "weights.txt").read_text() == str(total)
    signals = int(os.environ.get("TOY_SIGNALS") or 0)
    for shard in start.shards.to_do():
        for item in shard.item_ids:
            for _ in range(signals if item == "item-4" else 0):
                os.kill(os.getpid(), signal.SIGTERM)
            start.shards.item_done()
        labels = [Label(i, 0, "bare", 1, 1, None, value, 1.0, "continuation", "p") for i in shard.item_ids]
        values = [(item, 0, "bare", "c", value * start.config.toy.rate) for item in shard.item_ids]
        tables = {"values": values_table(values), "labels": labels_table(labels)}
        start.shards.commit(shard.index, tables, done=len(shard.item_ids))
    for shard in list(start.shards)[seen:]:
        total += sum(start.shards.read(shard.index, "values")["value"].to_pylist())
        start.metrics({"update": shard.index, "total": total})
        start.checkpoints.save(
            shard.index + 1,
            lambda folder, text=str(total): (folder / "weights.txt").write_text(text) and {},
            {"total": total, "shards": shard.index + 1},
        )
    start.output("policy/weights.txt").write_text(str(total))
    start.output("page.html", volatile=True).write_text(f"<p>{start.number}")
    mean = values_table([("mean", 0, "bare", "c", total / max(1, len(ids)))])
    report = {"total": total, "opening": ["It went well."]}
    start.finish(more_tables=[(VALUES_OF_ALL, mean)], report=report, verdict={"ok": True})


VALUES_OF_ALL = TableSpec("summary", VALUES.description, VALUES.columns, VALUES.id_columns)
STAGES: dict[str, Stage[Any, Any]] = {
    "source": Stage(
        "source",
        1,
        lambda config: (),
        ("source",),
        lambda start: Plan(items=[["only"]], tables=(VALUES,), unit="values", work=start.config.source.value),
        make_source,
    ),
    "toy": Stage("toy", 1, lambda config: ("source",), ("toy",), plan_toy, make_toy),
}


def run(name: str, *argv: str) -> int:
    return run_stage(STAGES[name], ToyConfig, argv)


def child(environment: dict[str, str], start: Callable[[], int]) -> int:
    """Returns the id of a forked process that does one start, quietly, and ends with its exit code."""
    pid = os.fork()
    if pid == 0:
        os.environ.update(environment)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 99
        try:
            code = start()
        finally:
            os._exit(code)
    return pid


def forked(environment: dict[str, str], name: str, argv: list[str]) -> int:
    """Runs one start in a child; returns its exit code, or minus the signal that ended it."""
    pid = child(environment, lambda: run(name, *argv))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    # stdin: a JSON list of [environment, stage, argv]; stdout: exit codes. Forked here, where no thread runs.
    if sys.argv[1:] == ["forks"]:
        print(json.dumps([forked(*case) for case in json.load(sys.stdin)]))
    else:
        sys.exit(run(*sys.argv[1:]))
