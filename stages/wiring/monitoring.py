"""What an arm's traffic came to, as a row of the monitoring table."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from env.feedback_tool.measures import unpriced
from env.offer import EnvironmentOffer
from env.play.stripping import is_success
from pipeline.types import Rollout


def monitoring_row(
    round_number: int, arm: str, rollouts: Sequence[Rollout], offer: EnvironmentOffer
) -> dict[str, Any]:
    """Returns a row of `pipeline.columns.MONITORING`; means are null without a graded rollout.

    Where calls are priced, a success counts 1 and all else 0; elsewhere a reward below 0 counts 0, one above
    1 counts 1: posteriors are of rates in [0, 1].
    """
    graded = [rollout for rollout in rollouts if rollout.reward is not None]
    if offer.feedback_tool:
        graded = [unpriced(rollout) for rollout in graded]
    content = offer.satisfaction
    return {
        "round": round_number,
        "arm": arm,
        "policy_digest": rollouts[0].policy_digest if rollouts else "",
        "rollouts": len(graded),
        "failed": len(rollouts) - len(graded),
        "reward_sum": float(sum(min(max(rollout.reward or 0.0, 0.0), 1.0) for rollout in graded)),
        "success": fmean(map(is_success, graded)) if graded else None,
        "unsafe": sum(any(event.code in offer.unsafe for event in rollout.events) for rollout in graded),
        "satisfaction": fmean(map(content, graded)) if graded and content is not None else None,
    }
