"""Which run this is, and on what machine."""

import os
from typing import Literal

from pydantic import field_validator

from pipeline.ids import seed_of
from pipeline.settings import Section, runtime, setting


class Run(Section):
    """Which run this is."""

    name: str = setting("demo", "folder under data_dir", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = setting(0, "every random number of the run follows from it", ge=0)
    round: int = setting(0, "number of the round that the run is; 0: it is none (docs/rounds.md)", ge=0)
    data_dir: str = runtime("data", "where runs are kept", min_length=1)
    tracking: Literal["none", "wandb"] = runtime(
        "none", "gets metrics, sample rollouts and reports too; offline unless WANDB_MODE is set"
    )
    patience: float = runtime(
        1.0,
        "times the seconds without a sign of life after which a rank, replica or player counts as hung "
        "(docs/launch.md): more where disks or a machine are slow",
        gt=0,
        advanced=True,
    )
    held_out: tuple[str, ...] | None = setting(
        None,
        "splits to evaluate on, each once; the critic is audited on those of unseen clusters; null: val and "
        "the environment's first test split",
        min_length=1,
    )
    rollouts_per_shard: int = runtime(
        1024, "rollouts that are committed together, about: what a kill costs at most", ge=1
    )

    @field_validator("data_dir")
    @classmethod
    def _at_home(cls, path: str) -> str:
        """Does what no shell does behind a `=` or in a file."""
        if (found := os.path.expanduser(path)).startswith("~"):
            raise ValueError("this home is nobody's. Next: give the path in full, or put ./ before it")
        return found

    @property
    def sampling_seed(self) -> int:
        """Seed of the rollouts that are trained on: the run's, another in each round, on the same tasks."""
        return seed_of(self.seed, "round", self.round) if self.round else self.seed

    def per_shard(self, rollouts_each: float) -> int:
        """Returns how many tasks, groups or states of so many rollouts each make a shard."""
        return max(1, int(self.rollouts_per_shard / max(1.0, rollouts_each)))


class Hardware(Section):
    """What `vdapo plan` holds the run against; with GPUs, what a stage must find before it starts."""

    num_gpus: int = runtime(0, "of one node; 0 plans for a CPU", ge=0)
    gpu_memory_gib: float = runtime(0.0, "usable memory of each", ge=0)
    host_memory_gib: float = runtime(4.0, "memory of the node", gt=0)
