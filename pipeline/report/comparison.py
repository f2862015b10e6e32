"""A comparison's report, made of its tables `comparison` and `spending` alone."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.comparison import (
    Compared,
    Curve,
    compared,
    cost_to,
    mean_success,
    spread_over_training,
)
from pipeline.few_seeds import holm
from pipeline.statistics import interval_dict

MEASURES = {
    "rollouts": "rollouts",
    "tokens": "generated tokens",
    "seconds": "seconds",
    "amortised_rollouts": "rollouts, critic amortised",
}
"""Column of the table -> what it counts; the first one is the primary measure."""
NUM_POINTS = 21  # of a drawn curve
Rows = Sequence[Mapping[str, Any]]
Curves = Mapping[str, Mapping[int, Curve]]
"""Arm -> seed -> its curve."""


def curves_of(rows: Rows, spending: Rows, measure: str) -> dict[str, dict[int, Curve]]:
    """Returns a curve for each run that was looked at, or whose starting policy was.

    It ends with all that the run spent: one that was refused keeps the policy that it had.
    """
    clusters: dict[int, set[str]] = defaultdict(set)
    looks: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["iteration"]):
        clusters[row["seed"]].update(row["clusters"])
        looks[row["arm"], row["seed"]].append(row)
    spent = defaultdict[tuple[str, int], float](float)
    for row in spending:
        spent[row["arm"], row["seed"]] += row.get(measure, 0.0)
    found: dict[str, dict[int, Curve]] = defaultdict(dict)
    for (arm, seed), own in looks.items():
        if own[0]["iteration"] < 0 and len(own) > 1:  # the starting policy, until the actor begins
            own.insert(1, {**own[0], measure: own[1][measure]})
        place = {cluster: number for number, cluster in enumerate(sorted(clusters[seed]))}
        won, tried = np.zeros((2, len(own), len(place)))
        for at, row in enumerate(own):
            codes = [place[cluster] for cluster in row["clusters"]]
            np.add.at(won[at], codes, row["rewards"])
            np.add.at(tried[at], codes, 1.0)
        curve = Curve(np.array([row[measure] for row in own], float), won, tried)
        if spent[arm, seed] > curve.costs[-1] * (1 + 1e-9):
            ends = [np.concatenate([x, x[-1:]]) for x in (curve.won, curve.tried)]
            curve = Curve(np.append(curve.costs, spent[arm, seed]), *ends)
        found[arm][seed] = curve
    return dict(found)


def comparison_report(
    rows: Rows,
    spending: Rows,
    *,
    method: str,  # the arm that the others are held against
    threshold: float,
    failed: Mapping[tuple[str, int], str],  # (arm, seed) of a run that came to no end -> why
) -> dict[str, Any]:
    """Returns report.json of a comparison."""
    curves = {measure: curves_of(rows, spending, measure) for measure in MEASURES}
    measures = {of: _measured(own, of, method, threshold, failed) for of, own in curves.items()}
    return {
        "method": method,
        "threshold": threshold,
        "tasks_of_a_look": max((len(row["task_ids"]) for row in rows), default=0),
        "arms": {arm: _of_arm(arm, own, rows, spending) for arm, own in sorted(curves["rollouts"].items())},
        "measures": measures,
        "failed": {f"{arm}-seed{seed}": why for (arm, seed), why in failed.items()},
        "left_out": [
            f"{arm}-seed{seed}" for arm, seed in failed if seed not in curves["rollouts"].get(arm, {})
        ],
    }


def _of_arm(arm: str, curves: Mapping[int, Curve], rows: Rows, spending: Rows) -> dict[str, Any]:
    """Returns what is said of an arm alone, whatever its cost is measured in."""
    ends = [curve.observed[0, -1] for curve in curves.values()]
    returns = defaultdict[int, list[float]](list)
    for row in sorted(rows, key=lambda row: row["iteration"]):
        if row["arm"] == arm and row["training_return"] is not None:
            returns[row["seed"]].append(row["training_return"])
    spreads = [spread_over_training(series) for series in returns.values() if len(series) > 1]
    paid = defaultdict[str, dict[str, float]](lambda: dict.fromkeys(("rollouts", "tokens", "seconds"), 0.0))
    own = [row for row in spending if row["arm"] == arm]
    for row in own:
        for name in paid[row["stage"]]:
            paid[row["stage"]][name] += row[name] / len({other["seed"] for other in own})
    return {
        "seeds": sorted(curves),
        "success_at_the_end": interval_dict(mean_success(list(curves.values()), np.array([np.inf]))[0]),
        "spread_over_seeds": float(np.std(ends, ddof=1)) if len(ends) > 1 else None,
        "spread_over_training": float(np.mean(spreads)) if spreads else None,
        "spending": dict(paid),
    }


def _measured(
    curves: Curves, measure: str, method: str, threshold: float, failed: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    """Returns success at equal budget, the cost to the threshold, and what the method has over each arm."""
    budgets = {
        arm: float(np.mean(ends))
        for arm, own in curves.items()
        if (ends := [curve.costs[-1] for seed, curve in own.items() if (arm, seed) not in failed])
    }
    budget = min(budgets.values(), default=0.0)
    arms, drawn = dict[str, Any](), list[dict[str, Any]]()
    for arm, own in sorted(curves.items()):
        costs = {seed: float(cost_to(threshold, c.costs, c.observed)[0]) for seed, c in own.items()}
        grid = np.linspace(0, max(curve.costs[-1] for curve in own.values()), NUM_POINTS)
        *points, at_budget = mean_success(list(own.values()), np.append(grid, budget))
        arms[arm] = {
            "success_at_budget": interval_dict(at_budget),
            "cost_to_threshold": _finite(float(np.median(list(costs.values())))),
            "cost_at_least": float(np.median([min(costs[seed], c.costs[-1]) for seed, c in own.items()])),
            "cost_of_each": {str(seed): _finite(cost) for seed, cost in costs.items()},
            "spent": float(np.mean([curve.costs[-1] for curve in own.values()])),
        }
        for x, y in zip(grid.tolist(), points, strict=True):
            value, low, high = interval_dict(y).values()
            drawn.append({measure: x, arm: value, f"{arm}_low": low, f"{arm}_high": high})
    claims = _claims(curves, method, budgets, threshold)
    return {"budget": budget, "arms": arms, "curves": drawn, "claims": claims}


def _claims(
    curves: Curves, method: str, budgets: Mapping[str, float], threshold: float
) -> list[dict[str, Any]]:
    """Returns what the method has over each arm, at the budget that the cheaper one of the two spent."""
    found = dict[str, tuple[list[int], float, Compared]]()
    for arm, own in sorted(curves.items()):
        if arm != method and (seeds := sorted(own.keys() & curves.get(method, {}).keys())):
            first, second = [curves[method][s] for s in seeds], [own[s] for s in seeds]
            budget = min((budgets[name] for name in (method, arm) if name in budgets), default=0.0)
            judged = compared(first, second, budget=budget, threshold=threshold, seed=0)
            found[arm] = seeds, budget, judged
    differences = holm([c.difference_p for *_, c in found.values()])
    ratios = holm([c.ratio_p for *_, c in found.values()])
    return [
        {
            "against": arm,
            "seeds": seeds,
            "budget": budget,
            "difference": interval_dict(c.difference) | {"p": c.difference_p, "p_holm": difference_p},
            "ratio": interval_dict(c.ratio)
            | {"at_least": _finite(c.ratio_at_least), "at_most": _finite(c.ratio_at_most)}
            | {"p": c.ratio_p, "p_holm": ratio_p},
        }
        for (arm, (seeds, budget, c)), difference_p, ratio_p in zip(
            found.items(), differences, ratios, strict=True
        )
    ]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
