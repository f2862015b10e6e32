"""Credit modes beside v_dapo: a section for each, with its own defaults."""

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from pipeline.settings import Section, setting

_SHARED: dict[str, dict[str, Any]] = {
    "alpha": {"description": "weight of the step advantages", "ge": 0},
    "lam": {"description": "trace decay per step", "ge": 0, "le": 1},
    "clip_high": {"description": "and at 1 + this", "gt": 0, "advanced": True},
    "dual_clip": {
        "description": "bound on a token's loss where A < 0, in -A; null is none",
        "gt": 1,
        "advanced": True,
    },
    "aggregation": {
        "description": "mean over an update's tokens, or over each rollout's and then over rollouts",
        "advanced": True,
    },
    "kl": {
        "description": "weight of the k3 KL to the starting policy; near it v_dapo's critic was judged",
        "ge": 0,
        "advanced": True,
    },
    "scale_rewards": {
        "description": "by the standard deviation of a set's rewards, or of all in an update: a small price "
        "then weighs little",
        "advanced": True,
    },
    "overlong_factor": {
        "description": "penalty of a rollout that fills its budget, rising over the last fifth; 0 is off",
        "ge": 0,
        "advanced": True,
    },
}
"""Settings of several modes, whose defaults differ."""


def shared(name: str, default: Any, source: str = "") -> Any:
    """Returns the field of a setting that several modes have."""
    return setting(default, source=source, **_SHARED[name])


class Mode(Section):
    """What every mode asks of the loss; the defaults are decoupled clip's."""

    clip_low: float = setting(
        0.2, "ratios are clipped at 1 - this", source="2503.14476", gt=0, lt=1, advanced=True
    )
    clip_high: float = shared("clip_high", 0.28, "2503.14476")
    dual_clip: float | None = shared("dual_clip", 10.0, "1912.09729")
    aggregation: Literal["token", "rollout"] = shared("aggregation", "token", "2503.14476")
    kl: float = shared("kl", 0.0)
    overlong_factor: float = shared("overlong_factor", 0.0)

    @model_validator(mode="after")
    def _bounds_what_is_not_clipped(self) -> Self:
        """Raises ValueError if dual clip would bound tokens that clip-higher leaves alone."""
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip = {self.dual_clip:g}; allowed: above 1 + clip_high = {1 + self.clip_high:g}, or "
                "null. Next: a larger actor.credit.dual_clip (published: 10), or null for none"
            )
        return self

    @property
    def needs_critic(self) -> bool:
        """Whether it reads the frozen critic, which then must have passed its gate."""
        return False


class DecoupledClip(Mode):
    """Group-relative credit with clip-higher, token mean, dual clip, overlong shaping, dynamic sampling."""

    mode: Literal["decoupled_clip"] = "decoupled_clip"
    overlong_factor: float = shared("overlong_factor", 0.5, "2503.14476: 1 for rewards of +-1")
    scale_rewards: Literal["group", "batch"] = shared("scale_rewards", "group", "TRL; batch: 2508.08221")
    history_filter: Literal["none", "all_right", "uniform"] = setting(
        "none",
        "leaves tasks out for five iterations if their last 8 to 16 bare outcomes were all right, or all "
        "equal; if that is over half of all tasks, a fifth of them comes back",
        advanced=True,
    )


class Grpo(Mode):
    """Group-relative credit as published first."""

    mode: Literal["grpo"] = "grpo"
    clip_high: float = shared("clip_high", 0.2, "2402.03300")
    dual_clip: float | None = shared("dual_clip", None)
    aggregation: Literal["token", "rollout"] = shared("aggregation", "rollout", "2402.03300")
    scale_rewards: Literal["group", "batch"] = shared("scale_rewards", "group", "TRL; batch: 2508.08221")
    kl: float = shared("kl", 1e-3)


class VerifierSteps(Mode):
    """Decoupled clip plus the verifier's sign of each step; no critic."""

    mode: Literal["verifier_steps"] = "verifier_steps"
    alpha: float = shared("alpha", 0.5)
    overlong_factor: float = shared("overlong_factor", 0.5, "2503.14476: 1 for rewards of +-1")


class Imitation(Section):
    """Likelihood of the iteration's own bare successes; no critic."""

    mode: Literal["imitation"] = "imitation"
    kl: ClassVar[float] = 0.0
    needs_critic: ClassVar[bool] = False


class ActorCritic(Mode):
    """GAE over the values of a head that is trained beside the policy."""

    mode: Literal["actor_critic"] = "actor_critic"
    lam: float = shared("lam", 0.95)
    unit: Literal["step", "token"] = setting(
        "step", "what lam counts: steps (messages, unless the environment cuts them) or tokens", advanced=True
    )
    pretrain_values: bool = setting(
        True,
        "first 50 updates of the head on the outcomes of the stage rollouts",
        source="2504.05118",
        advanced=True,
    )
    value_learning_rate: float = setting(2e-6, "of the head and its trunk", source="2504.05118", gt=0)


class TreeRpo(Mode):
    """Credit between the siblings of trees: a group's rollouts, each continued from one of its steps."""

    mode: Literal["tree_rpo"] = "tree_rpo"
    overlong_factor: float = shared("overlong_factor", 0.5, "2503.14476: 1 for rewards of +-1")
    branching: int = setting(
        3, "leaves of each rollout of a group, its own end included", ge=1, advanced=True
    )
    branch_step: int = setting(2, "step before which branches begin, from 0", ge=1, advanced=True)
