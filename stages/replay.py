"""Keeps the newest rollouts of a round and of those before it: a replay buffer, as tables of the round.

It reads the round's own rollouts and the buffer of the last round before it that ended without a
roll back. Nothing is played.
"""

import sys
from pathlib import Path

from pipeline.artifacts.artifact import Artifact
from pipeline.errors import ConfigError
from pipeline.runner import Plan, Stage, Start, run_stage
from stages.settings import Config
from stages.wiring.rounds import buffer_before


def plan(start: Start[Config]) -> Plan[Artifact | None]:
    """Finds the buffer to go on with."""
    if not start.config.run.round:
        raise ConfigError(
            "a replay buffer is a round's, and this run is none (run.round = 0). Next: make round"
        )
    earlier = buffer_before(start.run_dir.parent, start.config.run.round)
    estimate = {
        "goes on with": earlier.folder if earlier else "nothing",
        "rollouts_at_most": start.config.replay.capacity,
    }
    return Plan(items=[["buffer"]], unit="buffers", estimate=estimate, work=earlier)


def _files(config: Config) -> list[Path]:
    home = Path(config.run.data_dir)
    earlier = buffer_before(home, config.run.round) if config.run.round else None
    return [] if earlier is None else [earlier.path(f"{name}.parquet") for name in earlier.tables]


STAGE = Stage(
    name="replay",
    code_version=1,
    inputs=lambda config: ("tasks", "rollouts"),
    sections=("replay.capacity", "run.round", "tasks"),
    files=_files,
    plan=plan,
    make="stages.bodies.replay:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
