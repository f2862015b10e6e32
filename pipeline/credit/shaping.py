"""Shaping P of a rollout's reward by its length; only the group's advantage sees it, never the critic."""

from __future__ import annotations

import numpy as np


def overlong_soft(
    num_tokens: np.ndarray, *, max_tokens: int, buffer_tokens: int, factor: float = 0.5
) -> np.ndarray:
    """Returns P = factor * clip((max_tokens - buffer - len) / buffer, -1, 0) of each rollout.

    Published with rewards of +-1 and factor 1; ours are 0 and 1, so the factor is one half.

    Args:
        num_tokens: [N] response length of each rollout, in tokens.
        max_tokens: the token budget L_max.
        buffer_tokens: width of the ramp before it, 1 <= B <= L_max.
        factor: P of a rollout that fills the budget is -factor.

    Returns:
        [N] float64 in [-factor, 0].

    Raises:
        ValueError: buffer_tokens is out of range or factor is negative.

    Source:
        Yu et al., arXiv:2503.14476, eq. 13 (soft overlong punishment).

    Example:
        >>> overlong_soft(np.array([70, 80, 90, 100]), max_tokens=100, buffer_tokens=20)
        array([ 0.  ,  0.  , -0.25, -0.5 ])
    """
    if not 1 <= buffer_tokens <= max_tokens or factor < 0:
        raise ValueError(
            f"buffer_tokens = {buffer_tokens}, max_tokens = {max_tokens}, factor = {factor}; "
            "want 1 <= buffer_tokens <= max_tokens and factor >= 0"
        )
    ramp = (max_tokens - buffer_tokens - np.asarray(num_tokens, np.float64)) / buffer_tokens
    return factor * np.clip(ramp, -1.0, 0.0) + 0.0  # + 0.0 turns -0.0 into 0.0
