"""Likelihood: imitate what succeeded, every token alike."""

from collections.abc import Sequence

import numpy as np

from pipeline.training import TrainingRow
from pipeline.training.rows import imitation_rows
from pipeline.types import Rollout


def likelihood_rows(rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> list[TrainingRow]:
    """Returns rows for -mean log pi(token) of successes; their advantages do not count.

    Of successes of pi_0, the likelihood is highest at pi_0 given success.

    Source: filtered imitation, as Yuan et al., arXiv:2308.01825.
    """
    return imitation_rows(rollouts, [np.ones(len(r.steps)) for r in rollouts])
