"""The frozen step-level critic."""

from __future__ import annotations

from typing import Literal

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
    patience: int = Field(3, ge=1, description="evaluations running without a gain of one standard error")
    error_weight: float = Field(0.5, ge=0, description="of the error head's loss")
    value_loss: Literal["bce", "mse"] = Field(
        "bce", description="cross-entropy of the targets, or squared error as an ablation"
    )
    rank_weight: float = Field(
        0.0,
        ge=0,
        description="of the loss that ranks sibling steps of the fitting companies (.2 is a start value); "
        "0 is off, else labels.sibling_sets must be above 0",
    )
    class_balance: Literal["task", "label"] = Field(
        "task",
        description="task: every task weighs the same; label: and states of y >= .5 as much as the others, "
        "at most 4:1",
    )
    weight_decay: float = Field(0.01, ge=0, description="AdamW")
