"""What ablations of the critic came to, as a table of docs/results.md, and how sure a mean over seeds is."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from scipy.stats import t as student

from benchmarks._results import Row
from benchmarks._tables import grid, number, over_seeds, rows_of, with_bounds
from benchmarks.ablations import OVER_METHOD


def ablations(name: str) -> str:
    """Returns each variant's figures, means over seeds, and what it has in EV_within over the method."""
    tables = list(rows_of(name).values())
    metrics = ("ev", "ev_within", "rho_a", "ece_excess", "converged")
    lines = []
    for variant in tables[0].variants("ev"):
        means = [number(over_seeds(tables, variant, metric).value) for metric in metrics]
        gains = [table(variant, OVER_METHOD) for table in tables]
        lines.append([variant, *means, ", ".join(number(gain) for gain in gains), mean_with_bounds(gains)])
    head = ["", "EV", "EV_within", "rho_A", "ECE above its floor", "converged", "over the method", "mean"]
    return grid(head, lines)


def granularity_over_binary(known: str) -> str:
    """Returns what labels that know so much of located errors have in EV_within over those that know none."""
    more, none = f"dense, granularity: {known}", "dense, granularity: binary"
    tables = rows_of("ablations").values()
    return mean_with_bounds([table(more, OVER_METHOD) - table(none, OVER_METHOD) for table in tables])


def mean_with_bounds(values: Sequence[float]) -> str:
    """Returns the mean of one figure a seed, with Student's interval; that of one seed has none.

    Example:
        >>> mean_with_bounds([0.1, 0.3, 0.2])
        '0.20 [-0.05, 0.45]'
    """
    middle, seeds = mean(values), len(values)
    if seeds == 1:
        return number(middle)
    half = float(student.ppf(0.975, seeds - 1)) * stdev(values) / math.sqrt(seeds)
    return with_bounds(Row("", "", middle, middle - half, middle + half))
