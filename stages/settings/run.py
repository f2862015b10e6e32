"""Which run this is."""

from __future__ import annotations

from typing import Literal

from pipeline.settings import Section, runtime, setting


class Run(Section):
    """Which run this is."""

    name: str = setting("demo", description="folder under data_dir", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = setting(0, ge=0, description="every random number of the run follows from it")
    data_dir: str = runtime("data", description="where runs are kept", min_length=1)
    tracking: Literal["none", "wandb"] = runtime(
        "none",
        description="gets metrics, sample rollouts and reports too; offline unless WANDB_MODE is set",
    )
    held_out: tuple[str, ...] | None = setting(
        None,
        min_length=1,
        description="splits to evaluate on, each once; the critic is audited on those of unseen clusters; "
        "null: val and the environment's first test split",
    )
    rollouts_per_shard: int = runtime(
        1024, ge=1, description="rollouts that are committed together, about: what a kill costs at most"
    )

    def per_shard(self, rollouts_each: float) -> int:
        """Returns how many tasks, groups or states of so many rollouts each make a shard."""
        return max(1, int(self.rollouts_per_shard / max(1.0, rollouts_each)))
