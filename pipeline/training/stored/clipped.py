"""Clipped policy loss on stored rollouts, with importance weights against their stored log-probabilities."""

from collections.abc import Sequence

import numpy as np

from pipeline.training import TrainingRow
from pipeline.training.rows import policy_rows
from pipeline.types import Rollout


def clipped_rows(rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> list[TrainingRow]:
    """Returns rows for decoupled clip's loss, max(-A r, -A clip(r, .8, 1.28)), as mean over tokens.

    r = pi / pi_0, with the log-probabilities that were stored when the tokens were sampled. So only rollouts
    of the same prompt may be given: bare ones, never stripped ones. Tokens out of the clip range have no
    gradient, which bounds how far these rollouts can carry a policy.
    """
    return policy_rows(rollouts, advantages)
