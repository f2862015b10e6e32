"""When the actor stops itself: signs, in what is measured anyway, that it is learning the wrong thing."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from critics.drift.state import KL_UPDATES
from pipeline.errors import ArtifactError, ExitCode
from stages.settings.actor import Stops

CRITIC_RISE = "critic/rise"
"""Mean V_{T-1} - V_0. Not the mean of A_i(lam): that ends in R - V_{T-1}, so a critic that is pleased with
failures lowers it."""
FALLING_EVALUATIONS = 3
"""Looks at val running with less success and a more pleased critic, after which it stops (start value)."""
LENGTHS = {"response_length/mean": "tokens of a response", "steps/mean": "steps of a rollout"}


def refuse_unsafe(history: Sequence[Mapping[str, Any]], stops: Stops) -> None:
    """Raises ArtifactError, code QUALITY, if the actor should not go on: `history` is of metrics.jsonl."""
    if found := reasons(history, stops):
        iteration = max((line["iteration"] for line in history if "iteration" in line), default=0)
        raise ArtifactError(
            f"stopped after iteration {iteration}: {'; '.join(found)}. Its checkpoint is saved. Next: look "
            "at its rollouts (vdapo show); go on with another limit under actor.stops, or begin again with a "
            "smaller learning rate, a larger KL coefficient or a smaller alpha",
            code=ExitCode.QUALITY,
        )


def reasons(history: Sequence[Mapping[str, Any]], stops: Stops) -> list[str]:
    """Returns what speaks against going on, in words; nothing in a healthy history."""
    found = []
    kls = [line["ref_kl"] for line in history if "ref_kl" in line][-KL_UPDATES:]
    if stops.max_kl is not None and kls and median(kls) > stops.max_kl:
        found.append(
            f"KL to the starting policy is {median(kls):.3g} nats a token "
            f"(actor.stops.max_kl {stops.max_kl:g}), far from where any critic of it was judged"
        )
    for name, words in LENGTHS.items():
        lengths = [line[name] for line in history if name in line]
        if stops.max_length_change is None or not lengths or not lengths[0]:
            continue
        change = lengths[-1] / lengths[0] - 1
        if abs(change) > stops.max_length_change:
            found.append(
                f"{words}: {lengths[-1]:.1f}, {change:+.0%} since the first iteration "
                f"(actor.stops.max_length_change {stops.max_length_change:g})"
            )
    return found + _pleases_critic(history)


def _pleases_critic(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what to say if, some looks running, the pass rate fell and the critic was more pleased.

    The actor then pleases its critic, not the verifier.
    """
    looks = [line for line in history if "val/first_try" in line][-FALLING_EVALUATIONS - 1 :]
    if len(looks) <= FALLING_EVALUATIONS:
        return []
    terms = [
        [line[CRITIC_RISE] for line in history if CRITIC_RISE in line and a <= line["iteration"] < b]
        for a, b in pairwise(look["iteration"] for look in looks)
    ]
    if not all(terms):
        return []
    means = [sum(values) / len(values) for values in terms]
    rates = [look["val/first_try"] for look in looks]
    falls = all(later < earlier for earlier, later in pairwise(rates))
    if not (falls and all(later > earlier for earlier, later in pairwise(means))):
        return []
    return [
        f"success on val fell {FALLING_EVALUATIONS} times running, {rates[0]:.3f} to {rates[-1]:.3f}, while "
        f"the critic's value rose ever more along the rollouts, {means[0]:+.3f} to {means[-1]:+.3f}"
    ]
