"""Keeps the newest rollouts of a round and of those before it: a replay buffer, as tables of the round.

It reads the round's own rollouts and the buffer of the last round before it that ended without a
roll back; of that one what was played in such rounds. Nothing is played.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import NAME, read_manifest
from pipeline.errors import ConfigError
from pipeline.runner import Plan, Stage, Start, run_stage
from stages.settings import Config
from stages.wiring.rounds import teachers

Work = tuple[Artifact | None, list[int]]
"""The buffer to go on with, and the rounds whose rollouts it may hand on."""


def plan(start: Start[Config]) -> Plan[Work]:
    """Finds the buffer to go on with."""
    if not start.config.run.round:
        raise ConfigError(
            "a replay buffer is a round's, and this run is none (run.round = 0). Next: make round"
        )
    rounds = teachers(start.run_dir.parent, start.config.run.round)
    earlier = _buffer(rounds)
    estimate = {
        "goes on with": earlier.folder if earlier else "nothing",
        "rollouts_at_most": start.config.replay.capacity,
    }
    return Plan(items=[["buffer"]], unit="buffers", estimate=estimate, work=(earlier, list(rounds)))


def _buffer(rounds: Mapping[int, Path]) -> Artifact | None:
    """Returns the buffer of the last of these rounds that has one."""
    made = [folder for folder in rounds.values() if read_manifest(folder / "replay") is not None]
    return Artifact.open(made[-1], "replay") if made else None


def _files(config: Config) -> list[Path]:
    """Returns the tables of the buffer, and the verdicts by which its rollouts are handed on."""
    rounds = teachers(Path(config.run.data_dir), config.run.round)
    if (earlier := _buffer(rounds)) is None:
        return []
    verdicts = [folder / "promotion" / NAME for folder in rounds.values()]
    return [*(earlier.path(f"{name}.parquet") for name in earlier.tables), *verdicts]


STAGE = Stage(
    name="replay",
    code_version=2,
    inputs=lambda config: ("tasks", "rollouts"),
    sections=("replay.capacity", "run.round", "tasks"),
    files=_files,
    plan=plan,
    make="stages.bodies.replay:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
