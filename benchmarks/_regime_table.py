"""V-DAPO beside decoupled clip in every regime that is measured: the README's table."""

import math
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from benchmarks._looks import beside_at_equal_cost, curves_by_arm
from benchmarks._regimes import comparison_of
from benchmarks._tables import grid, percent, rows_of
from pipeline.comparison import Curve, cost_to

REGIMES = ("rare", "sparse", "dense", "long")
AGAINST = "decoupled_clip"
ARMS = {"v_dapo": "V-DAPO", "no_critic": "without its critic"}


def regimes() -> str:
    """Returns each regime's arms: points ahead at equal rollouts, times fewer rollouts, tokens, seconds."""
    lines = []
    for regime in REGIMES:
        tables, goal = rows_of(regime), comparison_of(regime)["threshold"]
        start = np.mean([table(AGAINST, "success at -1") for table in tables.values()])
        by_cost = [curves_by_arm(tables, cost) for cost in ("rollouts", "tokens", "seconds")]
        for arm, words in ARMS.items():
            pairs = [([own[arm][s] for s in tables], [own[AGAINST][s] for s in tables]) for own in by_cost]
            budget, judged = beside_at_equal_cost(*pairs[0], goal)
            value, low, high = (100 * x for x in astuple(judged.difference))
            points = f"{value:+.0f} [{low:.0f}, {high:.0f}] at {budget:,.0f}"
            times = [fewer(own, others, goal) for own, others in pairs]
            head = [f"{regime}: {percent(float(start))} %", str(len(tables))] if arm == "v_dapo" else ["", ""]
            lines.append([*head, words, points, f"{100 * goal:.0f} %", *times])
    head = [
        "first tries that succeed at the start",
        "seeds",
        "",
        "points ahead at equal rollouts",
        "to",
        "times fewer rollouts",
        "tokens",
        "time",
    ]
    return grid(head, lines)


def fewer(own: Sequence[Curve], others: Sequence[Curve], goal: float) -> str:
    """Returns how many times the cost of `own` others pay until success `goal`: the least seed to the most.

    `> 3.3`: others paid so much and were not there, or may have on a seed; such bounds are rounded down.
    One's own runs must all be there.
    """
    ratios = []
    for one, other in zip(own, others, strict=True):
        paid, theirs = (float(cost_to(goal, curve.costs, curve.observed)[0]) for curve in (one, other))
        if not np.isfinite(paid):
            raise ValueError(f"a run did not reach {goal:g} for {one.costs[-1]:g}: say so in words")
        never = not np.isfinite(theirs)
        ratios.append(((other.costs[-1] if never else theirs) / paid, never))
    (least, open_below), most = min(ratios), max(ratios)[0]
    open_above = any(never for _, never in ratios)
    return f"{_said(least, is_bound=open_below)} to {_said(most, is_bound=open_above)}"


def _said(times: float, *, is_bound: bool) -> str:
    """Returns a ratio with a digit that tells which side of 1 it is on."""
    digits = 1 if times >= 2 else 2
    scale = 10**digits
    return f"> {math.floor(times * scale) / scale:.{digits}f}" if is_bound else f"{times:.{digits}f}"
