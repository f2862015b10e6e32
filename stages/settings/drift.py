"""How the critic is watched, and what ends the actor's training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline.settings import Section, runtime


class Drift(Section):
    """How the frozen critic is watched while the actor moves away from the policy it was made for."""

    recalibrate: bool = Field(
        True, description="refit level and slope on fresh outcomes when one is off, for later iterations"
    )
    max_bias: float = Field(0.1, gt=0, description="mean V - R beyond which the level is off, but for chance")
    min_slope: float = Field(0.7, gt=0, description="of log-odds of R on those of V")
    max_slope: float = Field(1.4, gt=0, description="of log-odds of R on those of V")
    paid_every: int = Field(20, ge=0, description="updates between checks by fresh continuations; 0 is never")
    states: int = Field(256, ge=2, description="states of a paid check, at least; whole rollouts")
    num_continuations: int = Field(16, ge=2, description="of each of them, by the present actor")
    min_sign_agreement: float = Field(
        0.6, ge=0, le=1, description="of clear steps; with an upper bound below it steps are off"
    )
    step_weight_to_zero: bool = Field(
        True,
        description="alpha is 0 once Cov(A, Ahat) touches 0 or signs disagree, until a new critic passes",
    )
    refresh: Literal["never", "once", "on_drift"] = Field(
        "once", description="then make rollouts, labels, critic and critic_report anew for the present actor"
    )

    @model_validator(mode="after")
    def _limits_hold_a_right_slope(self) -> Drift:
        if not self.min_slope < 1 < self.max_slope:
            raise ValueError(
                f"min_slope {self.min_slope:g} and max_slope {self.max_slope:g}: a right critic's slope is 1 "
                "and must lie between them, or it is recalibrated in every iteration"
            )
        return self


class Stops(Section):
    """What ends the actor's training with exit code 4, after a checkpoint."""

    max_kl: float | None = runtime(
        0.1,
        gt=0,
        description="nats a token from the starting policy, median of three updates, where it is "
        "measured; null: no limit",
    )
    max_length_change: float | None = runtime(
        0.5, gt=0, description="of mean response length or steps since the first iteration; null: no limit"
    )
    falling_evaluations: int = runtime(
        3,
        ge=0,
        description="looks at val running with less success and a critic ever more pleased; 0 never stops",
    )
