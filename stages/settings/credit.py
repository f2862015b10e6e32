"""Who gets how much advantage: a section for each credit mode, with its own defaults."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipeline.settings import Section, setting

_OF_LOSS: dict[str, dict[str, Any]] = {
    "clip_high": {"description": "and at 1 + this", "gt": 0},
    "dual_clip": {"description": "bound on a token's loss where A < 0, in -A; null is none", "gt": 1},
    "aggregation": {
        "description": "mean over an update's tokens, or over each rollout's and then over rollouts"
    },
    "kl": {
        "description": "weight of the k3 KL to the starting policy; near it v_dapo's critic was judged",
        "ge": 0,
    },
    "overlong_factor": {
        "description": "penalty of a rollout that fills its budget, rising over the last fifth; 0 is off",
        "ge": 0,
    },
}
"""What the modes' defaults differ in."""


def _loss(name: str, default: Any, source: str = "") -> Any:
    return setting(default, advanced=True, source=source, **_OF_LOSS[name])


def _overlong() -> Any:
    return _loss("overlong_factor", 0.5, "2503.14476: 1 for rewards of +-1")


class _Mode(Section):
    """What every mode asks of the loss; the defaults are decoupled clip's."""

    needs_critic: ClassVar[bool] = False
    clip_low: float = setting(
        0.2, "ratios are clipped at 1 - this", source="2503.14476", gt=0, lt=1, advanced=True
    )
    clip_high: float = _loss("clip_high", 0.28, "2503.14476")
    dual_clip: float | None = _loss("dual_clip", 10.0, "1912.09729")
    aggregation: Literal["token", "rollout"] = _loss("aggregation", "token", "2503.14476")
    kl: float = _loss("kl", 0.0)
    overlong_factor: float = _loss("overlong_factor", 0.0)


class DecoupledClip(_Mode):
    """Group-relative credit with clip-higher, token mean, dual clip, overlong shaping, dynamic sampling."""

    mode: Literal["decoupled_clip"] = "decoupled_clip"
    overlong_factor: float = _overlong()


class Grpo(_Mode):
    """Group-relative credit as published first."""

    mode: Literal["grpo"] = "grpo"
    clip_high: float = _loss("clip_high", 0.2, "2402.03300")
    dual_clip: float | None = _loss("dual_clip", None)
    aggregation: Literal["token", "rollout"] = _loss("aggregation", "rollout", "2402.03300")
    kl: float = _loss("kl", 1e-3)


def _alpha() -> Any:
    return setting(0.5, "weight of the step advantages", ge=0)


class VerifierSteps(_Mode):
    """Decoupled clip plus the verifier's sign of each step; no critic."""

    mode: Literal["verifier_steps"] = "verifier_steps"
    alpha: float = _alpha()
    overlong_factor: float = _overlong()


class Drift(Section):
    """How the frozen critic is watched while the actor moves away from the policy it was made for."""

    react: Literal["never", "correct", "refresh_once", "refresh"] = setting(
        "refresh_once",
        "to what is found, in later iterations. correct: level and slope are refitted when one is off; the "
        "step weight is 0 once Cov(A, Ahat) touches 0 or signs disagree. refresh: then rollouts, labels, "
        "critic and report are also made again for the present actor, each time or once",
        advanced=True,
    )
    paid_every: int = setting(
        20, "updates between checks by fresh continuations; 0 is never", ge=0, advanced=True
    )
    states: int = setting(256, "states of a paid check, at least; whole rollouts", ge=2, advanced=True)
    num_continuations: int = setting(16, "of each of them, by the present actor", ge=2, advanced=True)


class VDapo(_Mode):
    """Group advantages over a shrunken baseline, plus the frozen critic's step advantages."""

    needs_critic: ClassVar[bool] = True
    mode: Literal["v_dapo"] = "v_dapo"
    alpha: float = _alpha()
    lam: float = setting(0.95, "trace decay per step", ge=0, le=1)
    gamma: float = setting(
        1.0,
        "discount per step of the step advantages; values stay chances of success",
        gt=0,
        le=1,
        advanced=True,
    )
    step_only: bool = setting(False, "step advantages alone, as an ablation", advanced=True)
    group_part: Literal["shrunken", "decoupled_clip"] = setting(
        "shrunken",
        "shrunken baseline and running scale, or decoupled clip's group mean and standard deviation",
        advanced=True,
    )
    kl: float = _loss("kl", 1e-3)
    on_weak_critic: Literal["refuse", "group_only", "allow"] = setting(
        "refuse", "if the gate failed: refuse, go on with alpha 0, or go on all the same"
    )
    drift: Drift = Drift()


Credit = Annotated[VDapo | DecoupledClip | Grpo | VerifierSteps, Field(discriminator="mode")]


def credit_options(settings: Credit) -> dict[str, Any]:
    """Returns a mode's settings as `pipeline.credit.make_credit` takes them."""
    options = settings.model_dump(exclude={"drift", "on_weak_critic", "group_part"})
    if settings.mode == "v_dapo" and settings.group_part == "decoupled_clip":
        options |= {"baseline": "group_mean", "scale": "group_std"}
    return options
