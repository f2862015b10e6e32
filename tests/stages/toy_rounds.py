"""Rounds of stages that make next to nothing, so that a round can be killed at every point of its way.

A line of stdin: [environment, folder, decision]; a line of stdout: exit code or minus the signal. A child is
forked for each, in which the stages of the round run too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline.artifacts.start
from pipeline.columns import MONITORING
from pipeline.config import load_config
from pipeline.errors import ArtifactError
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.schema import table_of
from stages.settings import Config
from stages.wiring.arms import stage_of
from stages.wiring.rounds import play_round
from tests.pipeline.toy import child

CONFIG = """
run: {name: r, data_dir: DATA}
rollouts: {chain: {num_attempts: 1}}
labels: {num_continuations: 0}
"""


UNGRADED = 0
"""Rollouts of a candidate that nobody could grade."""


def fake(name: str, decision: str = "", weights: str = "") -> Stage[Any, Any]:
    """Returns a stage with the inputs of the real one in a round; a policy that it trains is words."""

    def make(start: Start[Any], work: None) -> None:
        folder = {"actor": "actor", "sft": "policy", "stored": "policy"}.get(name)
        if folder is not None:
            output = start.output(folder)
            output.mkdir(parents=True, exist_ok=True)
            (output / "weights").write_text(weights or f"{start.run_dir.name} {name}")
        if name != "promotion":
            start.finish(done=1)
            return
        number, arms = start.config.run.round, (("baseline", 400, 0), ("candidate", 100, UNGRADED))
        table = {
            "round": [number] * 2,
            "arm": [arm for arm, *_ in arms],
            "policy_digest": ["a", "b"],
            "rollouts": [graded for _, graded, _ in arms],
            "failed": [failed for *_, failed in arms],
            "reward_sum": [280.0, 70.0],
            "success": [0.7] * 2,
            "unsafe": [0] * 2,
            "satisfaction": [None] * 2,
        }
        verdict = {"decision": decision, "candidate": {"stage": "stored", "folder": "policy"}}
        start.finish(done=1, more_tables=[(MONITORING, table_of(MONITORING, table))], verdict=verdict)

    def plan(start: Start[Any]) -> Plan[None]:
        return Plan(items=[["one"]], unit="items", work=None)

    def inputs(config: Any) -> tuple[str, ...]:
        return stage_of(name).inputs(config) if config.run.round else ()

    sections = () if name == "tasks" else ("run.round",)
    return Stage(name, 1, inputs, sections, plan, make)


def begin(folder: Path) -> None:
    """Makes a run with an actor, as there is before the first round."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "r.yaml"
    config.write_text(CONFIG.replace("DATA", str(folder)))
    for name in ("tasks", "sft", "actor"):
        assert run_stage(fake(name), Config, [str(config)]) == 0


def one_round(
    folder: Path, decision: str, number: int | None = None, stop_if_asked: Callable[[], None] = lambda: None
) -> int:
    """Plays a round of toy stages that comes to this decision; returns the exit code."""
    config = load_config(Config, folder / "r.yaml")

    def finish(stage: str, file: Path) -> int:
        return run_stage(fake(stage, decision), Config, [str(file)])

    try:
        play_round(config, number, finish=finish, stop_if_asked=stop_if_asked)
    except ArtifactError as error:
        return int(error.code)
    return 0


if __name__ == "__main__":
    pipeline.artifacts.start.provenance = dict  # git takes longer than all else
    for line in sys.stdin:
        environment, where, decided = json.loads(line)
        pid = child(environment, lambda: one_round(Path(where), decided))  # noqa: B023
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
