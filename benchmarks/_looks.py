"""Arms of `sparse` side by side, of what its results say of each look: a mean over seeds, a table."""

import re
from collections.abc import Mapping

import numpy as np
import yaml

from benchmarks._results import Table
from benchmarks._run import ROOT
from benchmarks.sparse import CONFIG
from pipeline.comparison import Compared, Curve, compared, cost_to, mean_success
from pipeline.statistics import interval_words

SUCCESS, SPENT = re.compile(r"success at (-?\d+)$"), "rollouts of "
Seeds = Mapping[int, Table]
"""Seed -> the rows of its looks."""


def curve_of(table: Table, arm: str) -> Curve:
    """Returns success of a run along its rollouts, up to all that it paid for; its tasks are one cluster.

    Results keep no tasks, so what is made of several curves varies with seeds alone.
    """
    metrics = [row.metric for row in table.rows if row.variant == arm]
    places = sorted(int(found[1]) for metric in metrics if (found := SUCCESS.match(metric)))
    costs = [table(arm, f"rollouts at {place}") for place in places]
    success = [table(arm, f"success at {place}") for place in places]
    if places[0] < 0 and len(places) > 1:  # the starting policy, until the actor begins
        costs.insert(1, costs[1])
        success.insert(1, success[0])
    paid = sum(table(arm, metric) for metric in metrics if metric.startswith(SPENT))
    if paid > costs[-1]:
        costs, success = [*costs, paid], [*success, success[-1]]
    return Curve(np.array(costs), np.array(success)[:, None], np.ones((len(costs), 1)))


def lines(tables: Seeds, against: str) -> list[list[str]]:
    """Returns a line for each arm that all seeds have: rollouts paid, success, rollouts to the threshold.

    Then its success less that of `against` for as many rollouts, and how many times its rollouts `against`
    needs to the threshold.
    """
    comparison = yaml.safe_load((ROOT / CONFIG).read_text("utf-8"))["comparison"]
    goal, found = comparison["threshold"], []
    made = [
        arm for arm in comparison["arms"] if all(arm in t.variants("success at -1") for t in tables.values())
    ]
    curves = {arm: [curve_of(table, arm) for table in tables.values()] for arm in made}
    for arm, own in curves.items():
        budget = float(np.mean([curve.costs[-1] for curve in own]))
        [end] = mean_success(own, np.array([budget]), 0)
        costs = [float(cost_to(goal, curve.costs, curve.observed)[0]) for curve in own]
        reached = ", ".join(
            f"{cost:,.0f}" if np.isfinite(cost) else f"> {curve.costs[-1]:,.0f}"
            for cost, curve in zip(costs, own, strict=True)
        )
        beside = ["", ""]
        if arm != against and against in curves:
            beside = _beside(compared(own, curves[against], budget=budget, threshold=goal, seed=0))
        found.append([arm, f"{budget:,.0f}", interval_words(end, 3), reached, *beside])
    return found


def _beside(judged: Compared) -> list[str]:
    if np.isfinite(judged.ratio.value):
        return [interval_words(judged.difference, 3), interval_words(judged.ratio, 2)]
    least, most = judged.ratio_at_least, judged.ratio_at_most
    bounds = [f"at least {least:.2f}"] * bool(np.isfinite(least) and least > 0)
    bounds += [f"at most {most:.2f}"] * bool(np.isfinite(most))
    return [interval_words(judged.difference, 3), ", ".join(bounds) or "neither reaches it"]
