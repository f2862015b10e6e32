"""Who gets how much advantage: a section for each credit mode, with its own defaults."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipeline.settings import Section, setting


def _clip_high(default: float, source: str) -> Any:
    return setting(default, "and at 1 + this", source=source, gt=0, advanced=True)


def _dual_clip(default: float | None, source: str = "") -> Any:
    said = "bound on a token's loss where A < 0, in -A; null is none"
    return setting(default, said, source=source, gt=1, advanced=True)


def _aggregation(default: str, source: str) -> Any:
    said = "mean over an update's tokens, or over each rollout's and then over rollouts"
    return setting(default, said, source=source, advanced=True)


def _kl(default: float) -> Any:
    said = "weight of the k3 KL to the starting policy; near it v_dapo's critic was judged"
    return setting(default, said, ge=0, advanced=True)


def _overlong_factor(default: float, source: str = "") -> Any:
    said = "penalty of a rollout that fills its budget, rising over the last fifth; 0 is off"
    return setting(default, said, source=source, ge=0, advanced=True)


class _Mode(Section):
    """What every mode asks of the loss; the defaults are decoupled clip's."""

    needs_critic: ClassVar[bool] = False
    clip_low: float = setting(
        0.2, "ratios are clipped at 1 - this", source="2503.14476", gt=0, lt=1, advanced=True
    )
    clip_high: float = _clip_high(0.28, "2503.14476")
    dual_clip: float | None = _dual_clip(10.0, "1912.09729")
    aggregation: Literal["token", "rollout"] = _aggregation("token", "2503.14476")
    kl: float = _kl(0.0)
    overlong_factor: float = _overlong_factor(0.0)


class DecoupledClip(_Mode):
    """Group-relative credit with clip-higher, token mean, dual clip, overlong shaping, dynamic sampling."""

    mode: Literal["decoupled_clip"] = "decoupled_clip"
    overlong_factor: float = _overlong_factor(0.5, "2503.14476: 1 for rewards of +-1")


class Grpo(_Mode):
    """Group-relative credit as published first."""

    mode: Literal["grpo"] = "grpo"
    clip_high: float = _clip_high(0.2, "2402.03300")
    dual_clip: float | None = _dual_clip(None)
    aggregation: Literal["token", "rollout"] = _aggregation("rollout", "2402.03300")
    kl: float = _kl(1e-3)


class Drift(Section):
    """How the frozen critic is watched while the actor moves away from the policy it was made for."""

    react: bool = setting(
        True,
        "to what is found, in later iterations: level and slope are refitted when one is off; the step "
        "weight is 0 once Cov(A, Ahat) touches 0 or signs disagree, until a new critic passes",
        advanced=True,
    )
    paid_every: int = setting(
        20, "updates between checks by fresh continuations; 0 is never", ge=0, advanced=True
    )
    states: int = setting(256, "states of a paid check, at least; whole rollouts", ge=2, advanced=True)
    num_continuations: int = setting(16, "of each of them, by the present actor", ge=2, advanced=True)
    refresh: Literal["never", "once", "on_drift"] = setting(
        "once",
        "after a paid check that finds steps off, how often rollouts, labels, critic and report are made "
        "again for the present actor",
        advanced=True,
    )


class VDapo(_Mode):
    """Group advantages over a shrunken baseline, plus the frozen critic's step advantages."""

    needs_critic: ClassVar[bool] = True
    mode: Literal["v_dapo"] = "v_dapo"
    alpha: float = setting(0.5, "weight of the step advantages", ge=0)
    lam: float = setting(0.95, "trace decay per step", ge=0, le=1)
    gamma: float = setting(
        1.0,
        "discount per step of the step advantages; values stay chances of success",
        gt=0,
        le=1,
        advanced=True,
    )
    step_only: bool = setting(False, "step advantages alone, as an ablation", advanced=True)
    baseline: Literal["shrinkage", "group_mean"] = setting(
        "shrinkage", "of the group part; group_mean is decoupled clip's", advanced=True
    )
    scale: Literal["running", "group_std"] = setting(
        "running", "of the group part; group_std is decoupled clip's", advanced=True
    )
    kl: float = _kl(1e-3)
    on_weak_critic: Literal["refuse", "group_only", "allow"] = setting(
        "refuse", "if the gate failed: refuse, go on with alpha 0, or go on all the same"
    )
    drift: Drift = Drift()


Credit = Annotated[VDapo | DecoupledClip | Grpo, Field(discriminator="mode")]


def credit_options(settings: Credit) -> dict[str, Any]:
    """Returns a mode's settings as `pipeline.credit.make_credit` takes them."""
    return settings.model_dump(exclude={"drift", "on_weak_critic"})
