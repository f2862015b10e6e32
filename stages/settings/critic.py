"""The frozen step-level critic."""

from __future__ import annotations

from pydantic import Field

from pipeline.settings import Section


class Critic(Section):
    """The frozen step-level critic."""

    trunk: str = Field(
        "policy",
        description="'policy' starts from the sft policy; else a model folder, told apart by its path: after "
        "a change of what is in it, make critic SET=--fresh",
    )
    fit_share: float = Field(0.72, gt=0, lt=1, description="clusters to fit on; labels are made for them")
    validate_share: float = Field(
        0.08, gt=0, lt=1, description="clusters that decide convergence; they and the rest calibrate"
    )
    fit_continuations: bool = Field(
        False,
        description="fit on the states and steps that the continuations of labels came to as well, by how "
        "they ended: several times the states, nothing more to sample; needs labels.target soft",
    )
    head_updates: int = Field(50, ge=0, description="phase 1: head only")
    head_learning_rate: float = Field(1e-4, gt=0, description="phase 1")
    learning_rate: float = Field(1e-5, gt=0, description="phase 2: all weights, cosine")
    max_epochs: float = Field(3, gt=0, description="phase 2 at most")
    batch_states: int = Field(512, ge=1, description="states per update")
    evaluations_per_epoch: int = Field(4, ge=1, description="looks at the validation clusters")
