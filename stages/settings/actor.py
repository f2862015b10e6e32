"""The actor's training."""

from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from pipeline.credit import CreditSet, make_credit
from pipeline.settings import Section, runtime, setting
from stages.settings.credit import Credit, VDapo, credit_options
from stages.settings.sampling import Chain

STRIPS = ("v_dapo", "decoupled_clip", "grpo", "verifier_steps")
"""Credit modes beside which stripped rollouts may train. imitation is of bare successes alone, actor_critic's
head learns outcomes of what the policy samples, tree_rpo would branch guided rollouts as well."""
ALONE = CreditSet(np.ones(1), [np.zeros(1)])
"""A set of one rollout, which many credit modes leave out."""


class Actor(Section):
    """The actor's training."""

    credit: Credit = VDapo()
    num_iterations: int = setting(100, "rounds of fresh rollouts", ge=1)
    tasks_per_update: int = setting(32, "tasks with kept sets per update", ge=1)
    updates_per_iteration: int = setting(1, "optimizer steps of a pass over an iteration's rollouts", ge=1)
    passes: int = setting(
        1,
        "passes over each iteration's rollouts; ratios stay those to the weights that sampled them",
        source="1707.06347, epochs",
        ge=1,
    )
    max_refills: int = setting(
        10, "dynamic sampling: rounds of more tasks per iteration", source="the recipe of 2503.14476", ge=0
    )
    task_order: Literal["random", "near_half"] = setting(
        "random",
        "in which an iteration visits tasks. near_half: of three times as many as it wants those first whose "
        "V(s_0), by the critic as it then stands, is nearest to one half; the mixture of tasks moves to them",
        advanced=True,
    )
    learning_rate: float = setting(1e-6, "constant after warm-up", source="2503.14476", gt=0)
    chain: Chain = Chain()
    guided: Literal["in_context", "stripped"] = setting(
        "in_context",
        "attempts after feedback train after the prompt that they saw. stripped: their successes alone do, "
        "after the bare prompt, with R minus the mean of the group's bare rollouts, at most a quarter of an "
        "update beside a bare set, alone where there is none",
        advanced=True,
    )
    checkpoint_every: int = runtime(10, "iterations between checkpoints", ge=1)
    evaluate_tasks: int = setting(100, "val tasks of a look at val, for the curve only", ge=1, advanced=True)
    evaluate_every: int = setting(4, "iterations between looks; there is one at the end", ge=1, advanced=True)
    stops: bool = runtime(
        True,
        "end with exit code 4 once KL passes .1 nats a token, or rollouts are half as long again, or half as "
        "long, as at first, or success falls three looks running while values rise "
        "(stages/wiring/safety_stops.py), or three iterations running had nothing to train on",
        advanced=True,
    )

    @model_validator(mode="after")
    def _orders_tasks_by_a_critic_that_it_has(self) -> Self:
        """Raises ValueError if nobody can say what V(s_0) is."""
        has_critic = self.credit.mode == "v_dapo" and self.credit.values != "oracle"
        if self.task_order == "near_half" and not has_critic:
            raise ValueError(
                f"actor.task_order = near_half asks the frozen critic, which {self.credit.mode} with these "
                "settings has not. Allowed here: random. Decoupled clip that visits tasks in this order is "
                "actor.credit = {mode: v_dapo, alpha: 0, group_part: decoupled_clip, kl: 0, "
                "overlong_factor: 0.5}"
            )
        return self

    @model_validator(mode="after")
    def _something_can_be_stripped(self) -> Self:
        """Raises ValueError if `guided` asks for what chain or credit mode do not have."""
        if self.guided == "in_context":
            return self
        if not self.chain.has_feedback:
            raise ValueError(
                f"actor.guided = stripped, but no attempt follows another: actor.chain.num_attempts = "
                f"{self.chain.num_attempts}, feedback_free_share = {self.chain.feedback_free_share:g}. Next: "
                "num_attempts of 2 or more and feedback_free_share below 1, or actor.guided=in_context"
            )
        if self.credit.mode not in STRIPS:
            raise ValueError(
                f"actor.guided = stripped adds rollouts to sets of a clipped loss, which actor.credit.mode = "
                f"{self.credit.mode} does not train on alone; allowed: {', '.join(STRIPS)}. Next: one of "
                "these, or actor.guided=in_context"
            )
        return self

    @model_validator(mode="after")
    def _some_set_can_be_learned_from(self) -> Self:
        """Raises ValueError if credit compares the rollouts of a set, and no set can have two."""
        chain, credit = self.chain, self.credit
        branches = credit.mode == "tree_rpo" and credit.branching > 1
        has_other = chain.has_pairs or branches or self.guided == "stripped"
        if not has_other and not make_credit(**credit_options(credit)).trains_on(ALONE):
            raise ValueError(
                f"actor.credit.mode = {credit.mode} with these settings compares the rollouts of a set, and "
                f"every set is of one: actor.chain = {chain.model_dump()}. Allowed: sets of 2 or more. Next: "
                "actor.chain.draws=8, or feedback_free_draws where all groups are feedback-free"
            )
        return self

    @property
    def rounds_at_most(self) -> int:
        """Rounds of tasks that an iteration samples: the first, and refills where credit asks for them."""
        refills = make_credit(**credit_options(self.credit)).dynamic_sampling
        return 1 + self.max_refills * refills

    @property
    def num_updates(self) -> int:
        """Optimizer steps at most."""
        return self.num_iterations * self.updates_per_iteration * self.passes

    @property
    def needs_critic(self) -> bool:
        """Whether it reads a frozen critic: for credit, or for the order of tasks alone."""
        return self.credit.needs_critic or self.task_order == "near_half"

    @property
    def reads_critic(self) -> bool:
        """Whether it needs the critic of the stages before it, made for the starting policy."""
        is_first_made = self.credit.mode == "v_dapo" and self.credit.drift.react == "refresh_first"
        return self.needs_critic and not is_first_made

    @property
    def may_refresh(self) -> bool:
        """Whether a critic may be made for what it plays, before it starts or later."""
        told = self.credit
        return told.mode == "v_dapo" and self.needs_critic and told.drift.react not in ("never", "correct")

    @property
    def reads_rollouts(self) -> bool:
        """Whether the stage `rollouts` teaches it something before the first iteration."""
        return self.credit.mode == "actor_critic" and self.credit.pretrain_values

    @property
    def skip_rule(self) -> Literal["none", "all_right", "uniform"]:
        """Which tasks are skipped for what they taught before; decoupled clip alone can."""
        return self.credit.history_filter if self.credit.mode == "decoupled_clip" else "none"

    @property
    def warmup_updates(self) -> int:
        """Updates of linear warm-up: a fifteenth of all, at most 10."""
        return min(10, self.num_updates // 15)
