"""How wide an audit's interval will be before anything is played, for rho_A.

Of the gate's measures it asks for most states: it is a correlation of differences, and both ends of a
measured difference are noisy. With r = s / (s + 2 v / K), the share of true spread in measured differences,
and n pairs:

    SE(rho)^2 = D / n [1 / r + rho^2 (1 / (2 r^2) - 2 / r - 1 / 2 + rho^2)]

The bracket is the delta method for normal variables and a known noise; at r = 1 it is (1 - rho^2)^2.
"""

from math import ceil, sqrt

SPREAD = 0.03
"""s: variance of true step advantages (start value; the demo, seed 0: .027)."""
NOISE = 0.08
"""v: mean V (1 - V) of a state (start value; there: .080)."""
EXPECTED = 0.5
"""rho: what a critic is expected to reach (start value)."""
DESIGN = 5.0
"""D: states of a cluster go together, few continuations are not normal (start value; there: 4.6)."""


def half_width(num_tasks: int, num_continuations: int, pairs_per_task: float) -> float:
    """Returns half of the 95 % interval of rho_A that an audit of so many tasks can be expected to give.

    Example:
        >>> round(half_width(300, 2, 3.6), 2)  # measured: .18 below the value, .33 above it
        0.25
    """
    r, rho = SPREAD / (SPREAD + 2 * NOISE / num_continuations), EXPECTED
    bracket = 1 / r + rho**2 * (1 / (2 * r**2) - 2 / r - 0.5 + rho**2)
    return 1.96 * sqrt(DESIGN / (num_tasks * pairs_per_task) * bracket)


def tasks_needed(threshold: float, num_continuations: int, pairs_per_task: float) -> int:
    """Returns the tasks of which the interval of a critic as expected lies above the threshold.

    Example:
        >>> tasks_needed(0.2, 2, 3.6), tasks_needed(0.2, 32, 3.6)
        (205, 41)
    """
    return ceil((half_width(1, num_continuations, pairs_per_task) / (EXPECTED - threshold)) ** 2)
