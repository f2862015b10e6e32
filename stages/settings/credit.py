"""Who gets how much advantage: a section for each credit mode, with its own defaults."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.settings import Section, setting
from stages.settings.opponents import (
    ActorCritic,
    DecoupledClip,
    Grpo,
    Imitation,
    Mode,
    TreeRpo,
    VerifierSteps,
    shared,
)


class Drift(Section):
    """How the frozen critic is watched while the actor moves away from the policy it was made for."""

    react: Literal["never", "correct", "refresh_once", "refresh", "refresh_first"] = setting(
        "refresh_once",
        "to what is found, in later iterations. correct: level and slope are refitted when one is off; the "
        "step weight is 0 once Cov(A, Ahat) touches 0 or signs disagree. refresh: then rollouts, labels, "
        "critic and report are also made again for the present actor, each time or once. refresh_first: they "
        "are made for the actor as it starts, in place of the run's own critic, then as correct",
        advanced=True,
    )
    refresh_tasks: int | None = setting(
        None, "training tasks of a refresh's rollouts; null: as rollouts.num_tasks", ge=1, advanced=True
    )
    paid_every: int = setting(
        20, "updates between checks by fresh continuations; 0 is never", ge=0, advanced=True
    )
    states: int = setting(256, "states of a paid check, at least; whole rollouts", ge=2, advanced=True)
    num_continuations: int = setting(16, "of each of them, by the present actor", ge=2, advanced=True)


class VDapo(Mode):
    """Group advantages over a shrunken baseline, plus the frozen critic's step advantages."""

    mode: Literal["v_dapo"] = "v_dapo"
    alpha: float = shared("alpha", 0.5, "benchmarks/lam_alpha.py: not told apart from 1, 2")
    lam: float = shared("lam", 0.95, "benchmarks/lam_alpha.py: not told apart from 0, .5")
    group_part: Literal["shrunken", "decoupled_clip", "none"] = setting(
        "shrunken",
        "shrunken baseline and running scale, or decoupled clip's group mean and standard deviation; none "
        "leaves step advantages alone, as an ablation",
        advanced=True,
    )
    values: Literal["critic", "oracle", "shuffled"] = setting(
        "critic",
        "of states: the frozen critic's. Bounds of any critic's use: oracle, the present actor's by "
        "drift.num_continuations fresh ones of each, without a critic; shuffled, another rollout's",
        advanced=True,
    )
    kl: float = shared("kl", 1e-3)
    on_weak_critic: Literal["refuse", "group_only", "allow"] = setting(
        "refuse", "if the gate failed: refuse, go on with alpha 0, or go on all the same"
    )
    drift: Drift = Drift()

    @model_validator(mode="after")
    def _has_a_part_to_train_on(self) -> Self:
        """Raises ValueError where neither the group part nor the step part would give an advantage."""
        if self.group_part == "none" and (self.alpha == 0 or self.on_weak_critic == "group_only"):
            raise ValueError(
                f"group_part = none with alpha = {self.alpha:g} and on_weak_critic = {self.on_weak_critic}: "
                "step advantages alone, and none of these. Next: alpha above 0 with on_weak_critic refuse or "
                "allow, or group_part shrunken"
            )
        return self

    @model_validator(mode="after")
    def _watches_with_enough_continuations(self) -> Self:
        """Raises ValueError where paid checks could say nothing of a critic: 2 samples show no clear step."""
        each, every = self.drift.num_continuations, self.drift.paid_every
        if each < 3 and every and self.alpha and self.values != "oracle":
            raise ValueError(
                f"drift.num_continuations = {each} with drift.paid_every = {every}: a step is clear from two "
                f"standard errors on, which {each} continuations of a state never reach, so checks would say "
                "nothing. Next: num_continuations of 3 or more, or paid_every 0"
            )
        return self

    @property
    def needs_values(self) -> bool:
        """Whether it asks what states are worth: not for alpha 0 over the group's mean."""
        return self.alpha > 0 or self.group_part != "decoupled_clip"

    @property
    def needs_critic(self) -> bool:
        """Whether it reads a frozen critic, which then must have passed its gate."""
        return self.needs_values and self.values != "oracle"


Credit = Annotated[
    VDapo | DecoupledClip | Grpo | VerifierSteps | Imitation | ActorCritic | TreeRpo,
    Field(discriminator="mode"),
]


OF_THE_STAGE = {
    *("drift", "on_weak_critic", "group_part", "values"),
    *("history_filter", "pretrain_values", "value_learning_rate"),
}
"""What the stage does for a mode, not the mode itself."""


def credit_options(settings: Credit) -> dict[str, Any]:
    """Returns a mode's settings as `pipeline.credit.make_credit` takes them."""
    options = settings.model_dump(exclude=OF_THE_STAGE)
    if settings.mode == "v_dapo":
        options["shuffled"] = settings.values == "shuffled"
        options["step_only"] = settings.group_part == "none"
        if settings.group_part == "decoupled_clip":
            options |= {"baseline": "group_mean", "scale": "group_std"}
    return options
