"""Arms of a regime side by side, of what its results say of each look: a mean over seeds, a table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np

from benchmarks._regimes import comparison_of
from benchmarks._results import Table
from pipeline.comparison import Compared, Curve, compared, cost_to, mean_success
from pipeline.few_seeds import holm
from pipeline.report.comparison import Curves, curves_of
from pipeline.statistics import interval_words, p_words

SUCCESS, SPENT = re.compile(r"success at (-?\d+)$"), "rollouts of "
Seeds = Mapping[int, Table]
"""Seed -> the rows of its looks."""


def curves_by_arm(tables: Seeds, cost: str = "rollouts") -> Curves:
    """Returns arm -> seed -> success along what a run had cost, as a comparison's report has it.

    Results keep no tasks: those of a look are one cluster, so what is made of several curves varies with
    seeds alone.
    """
    looks, spending = [], []
    for seed, table in tables.items():
        for row in table.rows:
            run = {"arm": row.variant, "seed": seed}
            if found := SUCCESS.match(row.metric):
                paid = table(row.variant, f"{cost} at {found[1]}")
                looks.append(
                    run
                    | {
                        "iteration": int(found[1]),
                        "clusters": ["all"],
                        "rewards": [row.value],
                        cost: paid,
                    }
                )
            elif row.metric.startswith(SPENT):
                spending.append(run | {"rollouts": row.value})
    return curves_of(looks, spending, cost)


def lines(regime: str, tables: Seeds, against: str) -> list[list[str]]:
    """Returns a line for each arm that all seeds have: rollouts paid, their share for the critic, success.

    Then rollouts to the threshold, its success less that of `against` at what the cheaper of the two spent
    on average, how many times its rollouts `against` needs to the threshold, each with how likely so much is
    by chance (Holm's p over the arms), and how many times its generated tokens and seconds.
    """
    goal, found, of_arm = comparison_of(regime)["threshold"], [], dict[str, Compared]()
    by_cost = {cost: _made(regime, tables, cost) for cost in ("rollouts", "tokens", "seconds")}
    for arm, own in by_cost["rollouts"].items():
        budget = spent(own)
        [end] = mean_success(own, np.array([budget]))
        costs = [float(cost_to(goal, curve.costs, curve.observed)[0]) for curve in own]
        reached = ", ".join(
            f"{cost:,.0f}" if np.isfinite(cost) else f"> {curve.costs[-1]:,.0f}"
            for cost, curve in zip(costs, own, strict=True)
        )
        of_all = 100 * sum(for_critic(table, arm) for table in tables.values()) / (budget * len(tables))
        share = f"{of_all:.0f} %" if of_all else ""
        if arm != against and against in by_cost["rollouts"]:
            of_arm[arm] = beside_at_equal_cost(own, by_cost["rollouts"][against], goal)[1]
        found.append([arm, f"{budget:,.0f}", share, interval_words(end, 3), reached])
    by_chance = [holm([judged.difference_p for judged in of_arm.values()])]
    by_chance += [holm([judged.ratio_p for judged in of_arm.values()])]
    p = dict(zip(of_arm, zip(*by_chance, strict=True), strict=True))
    for line in found:
        arm = line[0]
        if arm not in of_arm:
            line += [""] * 6
            continue
        judged, (of_gap, of_ratio) = of_arm[arm], map(p_words, p[arm]) if len(tables) > 1 else ("", "")
        line += [interval_words(judged.difference, 3), of_gap, times(judged), of_ratio]
        for cost in ("tokens", "seconds"):
            pair = (by_cost[cost][name] for name in (arm, against))
            line.append(times(compared(*pair, budget=0, threshold=goal, seed=0)))
    return found


def at_thresholds(regime: str, tables: Seeds, against: str, goals: Sequence[float]) -> list[list[str]]:
    """Returns a line for each arm beside `against`: how many times its rollouts that needs to each goal."""
    curves = _made(regime, tables, "rollouts")
    return [
        [
            arm,
            *(
                times(compared(own, curves[against], budget=0, threshold=goal, seed=0), bounds=False)
                for goal in goals
            ),
        ]
        for arm, own in curves.items()
        if arm != against
    ]


def _made(regime: str, tables: Seeds, cost: str) -> dict[str, list[Curve]]:
    """Returns arm -> its curve on each seed, of the arms that all seeds have, in the regime's order."""
    by_arm = curves_by_arm(tables, cost)
    names = dict.fromkeys([*comparison_of(regime)["arms"], *by_arm])
    whole = [arm for arm in names if by_arm.get(arm, {}).keys() == tables.keys()]
    return {arm: [by_arm[arm][seed] for seed in tables] for arm in whole}


def for_critic(table: Table, arm: str) -> float:
    """Returns how many of an arm's rollouts on a seed were for its critic alone.

    What stages `rollouts` and `labels` played is for the critic where no stored phase learns from it.
    """
    spent = [row for row in table.rows if row.variant == arm and row.metric.startswith(SPENT)]
    paid = {row.metric.removeprefix(SPENT): row.value or 0 for row in spent}
    others = ("actor", *("rollouts", "labels") * ("stored" in paid))
    return float(sum(n for stage, n in paid.items() if stage not in others))


def ahead(regime: str, tables: Seeds, arm: str, against: str, *, fresh: bool = False) -> str:
    """Returns by how much an arm is ahead of another in success, at what the cheaper one spent on average.

    `fresh`: only the actor's own rollouts count, as if all that was paid before them were free.
    """
    by_arm, goal = curves_by_arm(tables), comparison_of(regime)["threshold"]
    own, others = (
        [
            since(by_arm[name][seed], table(name, "rollouts at 0") if fresh else 0)
            for seed, table in tables.items()
        ]
        for name in (arm, against)
    )
    budget, judged = beside_at_equal_cost(own, others, goal)
    return f"{interval_words(judged.difference, 3)} at {budget:,.0f} rollouts"


def since(curve: Curve, paid: float) -> Curve:
    """Returns a curve as if what was `paid` at first had cost nothing."""
    return replace(curve, costs=np.maximum(curve.costs - paid, 0))


def spent(curves: Sequence[Curve]) -> float:
    """Returns what an arm's runs cost, a mean over seeds."""
    return float(np.mean([curve.costs[-1] for curve in curves]))


def beside_at_equal_cost(
    own: Sequence[Curve], others: Sequence[Curve], threshold: float
) -> tuple[float, Compared]:
    """Returns what the cheaper of two arms spent, and what the first has over the second there."""
    budget = min(spent(own), spent(others))
    return budget, compared(own, others, budget=budget, threshold=threshold, seed=0)


def times(judged: Compared, *, bounds: bool = True) -> str:
    """Returns the ratio of what two arms pay to the threshold, or what censored runs leave of it.

    `open`: on that side no bound can be given, as too many runs were not there yet.
    """
    if np.isfinite(judged.ratio.value):
        found = f"{judged.ratio.value:.2f}"
    else:
        least, most = judged.ratio_at_least, judged.ratio_at_most
        known = [f"at least {least:.2f}"] * bool(np.isfinite(least) and least > 0)
        known += [f"at most {most:.2f}"] * bool(np.isfinite(most))
        if not known:
            return "neither median reaches it"
        found = ", ".join(known)
    low, high = (
        f"{end:.2f}" if np.isfinite(end) and end > 0 else "open" for end in astuple(judged.ratio)[1:]
    )
    return f"{found} [{low}, {high}]" if bounds and (low, high) != ("open", "open") else found
