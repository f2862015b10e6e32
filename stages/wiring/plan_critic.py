"""What the critic costs beside the actor, and what its audit can be expected to tell: for `vdapo plan`."""

from collections.abc import Sequence

from critics.audit.forecast import EXPECTED, half_width, tasks_needed
from critics.report.gate import MIN_ADVANTAGE_CORRELATION
from env.catalog import offer_of
from stages.settings import Config
from stages.wiring.plan_work import Work, audited_tasks, watch_of

STEPS_OF_A_ROLLOUT = 4
"""Whose advantages the forecast counts (start value; the demo's have 4.6)."""


def critic_words(config: Config, work: Sequence[Work]) -> str:
    """Returns the critic's share of the actor's budget, and the width of its audit's interval, in words.

    The share has two ends: where the actor uses all refills it is least, where it needs none it is most.
    """
    own, actor = overhead_of(config, work)
    audit = {entry.stage: entry.rollouts for entry in work}["critic_report"]
    unfilled, dear = actor // config.actor.rounds_at_most, ""
    if audit > unfilled:
        which = "the actor" if audit > actor else "an actor that needs no refill"
        dear = f"; dearer than {which}: lower critic_report.num_continuations"

    def share(number: int) -> str:
        ends = f" with all refills, {number / unfilled:.0%} with none" if unfilled < actor else ""
        return f"{number:,}, {number / actor:.0%} of the actor's{ends}"

    return (
        f"the critic's own rollouts (labels, audit, checks, refreshes): {share(own)}\nits audit alone: "
        f"{share(audit)}{dear}\n{_audit_words(config)}"
    )


def _audit_words(config: Config) -> str:
    tasks, limit = audited_tasks(config), MIN_ADVANTAGE_CORRELATION
    if not tasks:
        return (
            f"run.held_out = {', '.join(config.held_out)} has no task that an audit can take, and "
            "critic_report will refuse it: name a split of unseen clusters too"
        )
    pairs, K = STEPS_OF_A_ROLLOUT - 1, config.critic_report.num_continuations
    return (
        f"{tasks} audited tasks are expected to tell rho_A to +- {half_width(tasks, K, pairs):.2f}; it takes "
        f"{tasks_needed(limit, K, pairs)} tasks to show that a critic of {EXPECTED:g} lies above the gate's "
        f"{limit:g}"
    )


def overhead_of(config: Config, work: Sequence[Work]) -> tuple[int, int]:
    """Returns the rollouts that only the critic asks for, and those of the actor at most beside them."""
    rollouts = {entry.stage: entry.rollouts for entry in work}
    checks, _ = watch_of(config.actor, offer_of(config.tasks.environment).steps_at_most(config.tasks))
    own = rollouts["labels"] + rollouts["critic_report"] + rollouts.get("refresh", 0) + checks
    return own, rollouts["actor"] - checks
