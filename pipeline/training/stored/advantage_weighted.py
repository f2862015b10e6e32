"""Advantage-weighted likelihood: imitate the steps that the frozen critic thinks well of, of any rollout."""

from collections.abc import Sequence

import numpy as np

from pipeline.training import TrainingRow
from pipeline.training.rows import imitation_rows
from pipeline.types import Rollout

MAX_WEIGHT = 20.0
"""Of a step: one that the critic misjudges must not own an update. The bound of arXiv:1910.00177."""


def step_weights(advantages: np.ndarray, temperature: float) -> np.ndarray:
    """Returns [T] w_i = min(exp(A_i / temperature), 20) > 0 of steps with advantages A_i.

    Of steps of pi_0, the weighted likelihood is highest at pi(a|s) ~ pi_0(a|s) exp(A(s, a) / temperature):
    no policy as near to pi_0 in KL has a higher mean advantage.

    Source: Peng et al., arXiv:1910.00177, eq. 12.

    Example:
        >>> step_weights(np.array([0.0, 0.2, 1.0]), 0.2).round(2)
        array([ 1.  ,  2.72, 20.  ])
    """
    return np.exp(np.minimum(advantages / temperature, np.log(MAX_WEIGHT)))


def advantage_weighted_rows(
    temperature: float, rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]
) -> list[TrainingRow]:
    """Returns rows for -sum_t w_i log pi(token t) / sum_t w_i over an update's tokens t, each of a step i.

    No ratio is taken, so a step may have been sampled after another prompt: stripped successes count too,
    by the critic's values of their bare states.
    """
    return imitation_rows(rollouts, [step_weights(A, temperature) for A in advantages])
