"""The actor's training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline.settings import Section, runtime
from stages.settings.drift import Drift, Stops
from stages.settings.sampling import Chain


class Actor(Section):
    """The actor's training."""

    credit: Literal["v_dapo", "decoupled_clip", "grpo"] = Field(
        "v_dapo", description="who gets how much advantage"
    )
    alpha: float = Field(0.5, ge=0, description="v_dapo: weight of the critic's step advantages")
    alpha_after_clean: float = Field(
        1.0,
        ge=0,
        description="v_dapo: that weight after two paid drift checks running that the gate would pass",
    )
    lam: float = Field(0.95, ge=0, le=1, description="v_dapo: trace decay per step")
    on_weak_critic: Literal["refuse", "group_only", "allow"] = Field(
        "refuse", description="if the gate failed"
    )
    num_iterations: int = Field(100, ge=1, description="rounds of fresh rollouts")
    tasks_per_update: int = Field(32, ge=1, description="tasks with kept sets per update")
    updates_per_iteration: int = Field(1, ge=1, description="optimizer steps on each iteration's rollouts")
    max_refills: int = Field(10, ge=0, description="dynamic sampling: rounds of more tasks per iteration")
    learning_rate: float = Field(1e-6, gt=0, description="constant after warm-up")
    warmup_updates: int = Field(10, ge=0, description="linear warm-up")
    weight_decay: float = Field(0.0, ge=0, description="AdamW")
    kl_coefficient: float | None = Field(None, ge=0, description="k3 KL to pi_0; null: the credit mode's own")
    chain: Chain = Chain()
    checkpoint_every: int = runtime(10, ge=1, description="iterations between checkpoints")
    evaluate_every: int = Field(5, ge=1, description="iterations between looks at val, for the curve only")
    evaluate_tasks: int = Field(100, ge=1, description="val tasks of such a look")
    drift: Drift = Drift()
    stops: Stops = Stops()

    @model_validator(mode="after")
    def _clean_checks_take_no_weight_away(self) -> Actor:
        if self.alpha_after_clean < self.alpha:
            raise ValueError(
                f"alpha = {self.alpha:g}, alpha_after_clean = {self.alpha_after_clean:g}: two good checks "
                "would lower the weight. Set alpha_after_clean to alpha or more"
            )
        return self
