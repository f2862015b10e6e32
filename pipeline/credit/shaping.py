"""Shaping P of a rollout's reward by its length; only the group's advantage sees it, never the critic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Overlong:
    """Soft overlong punishment: P = factor * clip((L_max - buffer - len) / buffer, -1, 0).

    Published with rewards of +-1 and factor 1; ours are 0 and 1, so the factor is one half.

    Attributes:
        factor: P of a rollout that fills its budget is -factor.
        buffer_tokens: width of the ramp before the budget's end; None is a fifth of the budget, as published
            (4,096 of 20,480).

    Source:
        Yu et al., arXiv:2503.14476, eq. 13.

    Example:
        >>> Overlong()(np.array([70, 80, 90, 100]), np.full(4, 100))
        array([ 0.  ,  0.  , -0.25, -0.5 ])
    """

    factor: float = 0.5
    buffer_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.factor < 0 or (self.buffer_tokens is not None and self.buffer_tokens < 1):
            raise ValueError(
                f"factor = {self.factor}, buffer_tokens = {self.buffer_tokens}; want factor >= 0 and "
                "a buffer of at least 1 token"
            )

    def __call__(self, num_tokens: np.ndarray, max_tokens: np.ndarray) -> np.ndarray:
        """Returns [N] P in [-factor, 0] of rollouts.

        Args:
            num_tokens: [N] lengths, counted as the budget counts them.
            max_tokens: [N] budgets L_max.

        Raises:
            ValueError: the buffer is wider than a budget.
        """
        lengths, budgets = np.asarray(num_tokens, np.float64), np.asarray(max_tokens, np.float64)
        buffers = np.maximum(budgets // 5, 1) if self.buffer_tokens is None else self.buffer_tokens
        if np.any(buffers > budgets):
            raise ValueError(
                f"buffer_tokens = {self.buffer_tokens} is more than a budget of {budgets.min():.0f} tokens"
            )
        return self.factor * np.clip((budgets - buffers - lengths) / buffers, -1.0, 0.0) + 0.0  # no -0.0
