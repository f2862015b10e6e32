"""The frozen step-level critic."""

from __future__ import annotations

from pipeline.settings import Section, setting


class Critic(Section):
    """The frozen step-level critic."""

    trunk: str = setting(
        "policy",
        description="'policy' starts from the sft policy; else a model folder, told apart by its path: after "
        "a change of what is in it, make critic SET=--fresh",
    )
    fit_share: float = setting(0.72, gt=0, lt=1, description="clusters to fit on; labels are made for them")
    validate_share: float = setting(
        0.08, gt=0, lt=1, description="clusters that decide convergence; they and the rest calibrate"
    )
    fit_continuations: bool = setting(
        True,
        description="with labels.target soft or outcome_dense, fit on the states that continuations came to "
        "as well, by how they ended: several times the states, nothing more to sample",
        source="docs/results.md, critic quality: EV within .43 against .38 without",
        advanced=True,
    )
    head_updates: int = setting(50, ge=0, description="phase 1: head only", advanced=True)
    head_learning_rate: float = setting(1e-4, gt=0, description="phase 1")
    learning_rate: float = setting(1e-5, gt=0, description="phase 2: all weights, cosine")
    max_epochs: float = setting(3, gt=0, description="phase 2 at most")
    batch_states: int = setting(512, ge=1, description="states per update")
    evaluations_per_epoch: int = setting(
        4, ge=1, description="looks at the validation clusters", advanced=True
    )
