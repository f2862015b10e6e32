"""Which run this is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.settings import Section, runtime


class Run(Section):
    """Which run this is."""

    name: str = Field("demo", description="folder under data_dir", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = Field(0, ge=0, description="every random number of the run follows from it")
    data_dir: str = runtime("data", description="where runs are kept", min_length=1)
    tracking: Literal["none", "wandb"] = runtime(
        "none",
        description="gets metrics, sample rollouts and reports too; offline unless WANDB_MODE is set",
    )
