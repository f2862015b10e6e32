"""At which tokens of a rollout a critic is read."""

import numpy as np

from pipeline.types import Rollout


def value_positions(rollout: Rollout) -> np.ndarray:
    """Returns [T] the token at which each step's state is read: the last one before the step's first."""
    prompt = len(rollout.prompt_token_ids)
    return np.array([prompt + step.token_start - 1 for step in rollout.steps], dtype=np.int64)


def error_positions(rollout: Rollout) -> np.ndarray:
    """Returns [T] the token at which each step's error is read: the step's last."""
    prompt = len(rollout.prompt_token_ids)
    return np.array([prompt + step.token_end - 1 for step in rollout.steps], dtype=np.int64)
