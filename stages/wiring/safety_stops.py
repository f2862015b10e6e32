"""When the actor stops itself: signs, in what is measured anyway, that it is learning the wrong thing."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import nan
from statistics import fmean, median
from typing import Any

from pipeline.errors import ArtifactError, ExitCode

KL_UPDATES = 3
"""One unlikely token in ten thousand can dominate an update's KL: distances are medians of so many."""
CRITIC_RISE = "critic/rise"
"""Mean V_{T-1} - V_0. Not the mean of A_i(lam): that ends in R - V_{T-1}, so a critic that is pleased with
failures lowers it."""
MAX_KL = 0.1
"""Nats a token from the starting policy, median of `KL_UPDATES`, where it is measured (start value)."""
MAX_LENGTH_CHANGE = 0.5
"""Of mean response length or steps since the first iteration (start value)."""
FALLING_EVALUATIONS = 3
"""Looks at val running with less success and a more pleased critic, after which it stops (start value)."""
LENGTHS = {"response_length/mean": "tokens of a response", "steps/mean": "steps of a rollout"}


def refuse_unsafe(history: Sequence[Mapping[str, Any]]) -> None:
    """Raises ArtifactError, code QUALITY, if the actor should not go on: `history` is of metrics.jsonl."""
    if found := reasons(history):
        iteration = max((line["iteration"] for line in history if "iteration" in line), default=0)
        raise ArtifactError(
            f"stopped after iteration {iteration}: {'; '.join(found)}. Its checkpoint is saved. Next: look "
            "at its rollouts (vdapo show); go on with actor.stops=false, or begin again with a "
            "smaller learning rate, a larger KL coefficient or a smaller alpha",
            code=ExitCode.QUALITY,
        )


def kl_to_start(history: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the KL to the starting policy after the last updates, in nats a token; None: not measured."""
    kls = [line["ref_kl"] for line in history if "ref_kl" in line]
    return median(kls[-KL_UPDATES:]) if kls else None


def reasons(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what speaks against going on, in words."""
    found = []
    kl = kl_to_start(history)
    if kl is not None and kl > MAX_KL:
        found.append(
            f"KL to the policy that it began with is {kl:.3g} nats a token (the limit is {MAX_KL:g}), far "
            "from where a critic of that policy was judged"
        )
    for name, words in LENGTHS.items():
        lengths = [line[name] for line in history if name in line]
        change = lengths[-1] / lengths[0] - 1 if lengths and lengths[0] else 0.0
        if abs(change) > MAX_LENGTH_CHANGE:
            found.append(
                f"{words}: {lengths[-1]:.1f}, {change:+.0%} since the first iteration "
                f"(the limit is {MAX_LENGTH_CHANGE:.0%})"
            )
    return found + _pleases_critic(history)


def _pleases_critic(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what to say if, some looks running, the pass rate fell and the critic was more pleased.

    The actor then pleases its critic, not the verifier.
    """
    looks = [line for line in history if "val/first_try" in line][-FALLING_EVALUATIONS - 1 :]
    rates, rises = [look["val/first_try"] for look in looks], []
    for a, b in pairwise(look["iteration"] for look in looks):
        own = [line[CRITIC_RISE] for line in history if CRITIC_RISE in line and a <= line["iteration"] < b]
        rises.append(fmean(own) if own else nan)  # no comparison with nan holds
    falls = len(looks) > FALLING_EVALUATIONS and all(later < earlier for earlier, later in pairwise(rates))
    if not (falls and all(later > earlier for earlier, later in pairwise(rises))):
        return []
    return [
        f"success on val fell {FALLING_EVALUATIONS} times running, {rates[0]:.3f} to {rates[-1]:.3f}, while "
        f"the critic's value rose ever more along the rollouts, {rises[0]:+.3f} to {rises[-1]:+.3f}"
    ]
