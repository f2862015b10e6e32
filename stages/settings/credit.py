"""Who gets how much advantage: a section for each credit mode, with its own defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Tag

from pipeline.settings import Section, by_kind, setting
from stages.settings.drift import Drift


class _Mode(Section):
    """What every mode asks of the loss; the defaults are decoupled clip's."""

    clip_low: float = setting(
        0.2, gt=0, lt=1, description="ratios are clipped at 1 - this", source="2503.14476", advanced=True
    )
    clip_high: float = setting(0.28, gt=0, description="and at 1 + this", source="2503.14476", advanced=True)
    dual_clip: float | None = setting(
        10.0,
        gt=1,
        description="bound on a token's loss where A < 0, in -A; null is none",
        source="1912.09729",
        advanced=True,
    )
    aggregation: Literal["token", "rollout"] = setting(
        "token",
        description="mean over an update's tokens, or over each rollout's and then over rollouts",
        source="2503.14476",
        advanced=True,
    )
    kl: float = setting(0.0, ge=0, description="weight of the k3 KL to the starting policy", advanced=True)
    overlong_factor: float = setting(
        0.0,
        ge=0,
        description="penalty of a rollout that fills its budget, rising over the last fifth; 0 is off",
        advanced=True,
    )


class DecoupledClip(_Mode):
    """Group-relative credit with clip-higher, token mean, dual clip, overlong shaping, dynamic sampling."""

    mode: Literal["decoupled_clip"] = "decoupled_clip"
    overlong_factor: float = setting(
        0.5,
        ge=0,
        description="penalty of a rollout that fills its budget, rising over the last fifth; 0 is off",
        source="2503.14476: 1 for rewards of +-1",
        advanced=True,
    )


class Grpo(_Mode):
    """Group-relative credit as published first."""

    mode: Literal["grpo"] = "grpo"
    clip_high: float = setting(0.2, gt=0, description="and at 1 + this", source="2402.03300", advanced=True)
    dual_clip: float | None = setting(
        None, gt=1, description="bound on a token's loss where A < 0, in -A; null is none", advanced=True
    )
    aggregation: Literal["token", "rollout"] = setting(
        "rollout",
        description="mean over an update's tokens, or over each rollout's and then over rollouts",
        source="2402.03300",
        advanced=True,
    )
    kl: float = setting(1e-3, ge=0, description="weight of the k3 KL to the starting policy", advanced=True)


class VDapo(_Mode):
    """Group advantages over a shrunken baseline, plus the frozen critic's step advantages."""

    mode: Literal["v_dapo"] = "v_dapo"
    alpha: float = setting(0.5, ge=0, description="weight of the step advantages")
    lam: float = setting(0.95, ge=0, le=1, description="trace decay per step")
    gamma: float = setting(
        1.0,
        gt=0,
        le=1,
        description="discount per step of the step advantages; values stay chances of success",
        advanced=True,
    )
    step_only: bool = setting(False, description="step advantages alone, as an ablation", advanced=True)
    baseline: Literal["shrinkage", "group_mean"] = setting(
        "shrinkage", description="of the group part; group_mean is decoupled clip's", advanced=True
    )
    scale: Literal["running", "group_std"] = setting(
        "running", description="of the group part; group_std is decoupled clip's", advanced=True
    )
    kl: float = setting(
        1e-3,
        ge=0,
        description="weight of the k3 KL to the starting policy, near which the critic was judged",
        advanced=True,
    )
    max_uniform_share: float = setting(
        0.5,
        ge=0,
        le=1,
        description="share of sets of equal rewards in an update, thinned by lot; 0 leaves them all out",
        advanced=True,
    )
    on_weak_critic: Literal["refuse", "group_only", "allow"] = setting(
        "refuse", description="if the gate failed: refuse, go on with alpha 0, or go on all the same"
    )
    drift: Drift = Drift()


Credit = Annotated[
    Annotated[VDapo, Tag("v_dapo")]
    | Annotated[DecoupledClip, Tag("decoupled_clip")]
    | Annotated[Grpo, Tag("grpo")],
    by_kind("mode", "v_dapo"),
]


def credit_options(settings: Credit) -> dict[str, Any]:
    """Returns a mode's settings as `pipeline.credit.make_credit` takes them."""
    return settings.model_dump(exclude={"drift", "on_weak_critic"})
