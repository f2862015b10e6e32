"""What the traffic of both arms came to, as rows of the monitoring table."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from env.feedback_tool.measures import unpriced
from env.offer import EnvironmentOffer
from env.play.stripping import is_success
from pipeline.types import Rollout


def monitoring_rows(
    round_number: int, traffic: Mapping[str, Sequence[Rollout]], offer: EnvironmentOffer
) -> list[dict[str, Any]]:
    """Returns a row of `pipeline.columns.MONITORING` for each arm of a traffic: arm -> its rollouts.

    Where calls are priced, or a reward lies outside [0, 1], a success counts 1 and all else 0, in all arms:
    posteriors are of rates. Means are null without a graded rollout.
    """
    rewards = [rollout.reward or 0.0 for rollouts in traffic.values() for rollout in rollouts]
    by_success = offer.feedback_tool or not all(0 <= reward <= 1 for reward in rewards)
    return [_row(round_number, arm, rollouts, offer, by_success) for arm, rollouts in traffic.items()]


def _row(
    round_number: int, arm: str, rollouts: Sequence[Rollout], offer: EnvironmentOffer, by_success: bool
) -> dict[str, Any]:
    graded = [rollout for rollout in rollouts if rollout.reward is not None]
    if by_success:
        graded = [unpriced(rollout) for rollout in graded]
    content = offer.satisfaction
    return {
        "round": round_number,
        "arm": arm,
        "policy_digest": rollouts[0].policy_digest if rollouts else "",
        "rollouts": len(graded),
        "failed": len(rollouts) - len(graded),
        "reward_sum": float(sum(rollout.reward or 0.0 for rollout in graded)),
        "success": fmean(map(is_success, graded)) if graded else None,
        "unsafe": sum(any(event.code in offer.unsafe for event in rollout.events) for rollout in graded),
        "satisfaction": fmean(map(content, graded)) if graded and content is not None else None,
    }
