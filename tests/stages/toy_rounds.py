"""Rounds of stages that make next to nothing, so that a round can be killed at every point of its way.

A line of stdin: [environment, folder, decision]; a line of stdout: exit code or minus the signal. A child is
forked for each, in which the stages of the round run too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pipeline.artifacts.start
from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.config import load_config
from pipeline.errors import ArtifactError
from stages.settings import Config
from stages.wiring.arms import stage_of
from stages.wiring.rounds import play_round
from tests.pipeline.toy import child

CONFIG = """
run: {name: r, data_dir: DATA}
rollouts: {chain: {num_attempts: 1}}
labels: {num_continuations: 0}
"""


def fake(name: str, decision: str) -> Stage[Any, Any]:
    """Returns a stage with the inputs of the real one; the policy it trains is the name of its run."""
    real = stage_of(name)

    def make(start: Start[Any], work: None) -> None:
        folder = {"actor": "actor", "sft": "policy", "stored": "policy"}.get(name)
        if folder is not None:
            output = start.output(folder)
            output.mkdir(parents=True, exist_ok=True)
            (output / "weights").write_text(f"{start.run_dir.name} {name}")
        verdict = {"decision": decision, "candidate": {"stage": "stored", "folder": "policy"}}
        start.finish(done=1, verdict=verdict if name == "promotion" else None)

    sections = ("run.round",) if name != "tasks" else ()
    plan = lambda start: Plan(items=[["one"]], unit="items", work=None)  # noqa: E731
    return Stage(name, 1, real.inputs, sections, plan, make)


def begin(folder: Path) -> str:
    """Makes a run with an actor, as there is before the first round; returns its configuration."""
    config = folder / "r.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(CONFIG.replace("DATA", str(folder)))
    for name in ("tasks", "sft", "actor"):
        stage = Stage(name, 1, lambda _: (), (), *((lambda of: (of.plan, of.make))(fake(name, ""))))
        assert run_stage(stage, Config, [str(config)]) == 0
    return str(config)


def one_round(folder: Path, decision: str, number: int | None = None) -> int:
    """Plays a round of toy stages that comes to this decision; returns the exit code."""
    config = load_config(Config, folder / "r.yaml")

    def finish(stage: str, file: Path) -> int:
        return run_stage(fake(stage, decision), Config, [str(file)])

    try:
        play_round(config, number, finish=finish)
    except ArtifactError as error:
        return int(error.code)
    return 0


if __name__ == "__main__":
    pipeline.artifacts.start.provenance = lambda: {}  # git takes longer than all else
    for line in sys.stdin:
        environment, where, decided = json.loads(line)
        pid = child(environment, lambda: one_round(Path(where), decided))  # noqa: B023
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
