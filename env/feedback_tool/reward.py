"""What an episode is worth in which the policy may ask for feedback."""

MAX_CALLS = 2
"""Of an episode; with the answer that follows, three messages where one answers."""
CALL_PRICE = 0.1
"""c (start value)."""
REVISION_SHARE = 0.05
"""alpha_rev, below c: else a wrong answer first would pay (start value)."""


def tool_reward(last: float, first: float, calls: int) -> float:
    """Returns r = R_last - c calls + alpha_rev (R_last - R_first), in [-.25, 1].

    Args:
        last: R_last in [0, 1], of the episode as it ended.
        first: R_first in [0, 1], of what stood when feedback was first asked for; R_last without calls.
        calls: 0 to `MAX_CALLS`.

    So right at once > one call > two calls > wrong > wrong and called, and a call pays only where it mends
    with a probability above c / (1 + alpha_rev), one in ten. Between -1 and 1 it is 2 r - 1.

    Raises:
        ValueError: rewards out of range, too many calls, or another first answer without a call.

    Example:
        >>> [round(tool_reward(*case), 2) for case in ((1, 1, 0), (1, 0, 1), (1, 0, 2), (0, 0, 0), (0, 0, 1))]
        [1.0, 0.95, 0.85, 0.0, -0.1]
    """
    if not (0 <= last <= 1 and 0 <= first <= 1 and 0 <= calls <= MAX_CALLS):
        raise ValueError(f"rewards {last}, {first}, {calls} calls; allowed: [0, 1], 0 to {MAX_CALLS} calls")
    if calls == 0 and first != last:
        raise ValueError(f"first reward {first}, last {last} without a call; then there is one answer")
    return last - CALL_PRICE * calls + REVISION_SHARE * (last - first)
