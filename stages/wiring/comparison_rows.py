"""The rows of a comparison's tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stages.wiring.arm_costs import COSTS
from stages.wiring.arm_results import Result


def comparison_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the rows of the table `comparison`.

    A run's curve begins with the starting policy where some run's actor began with that very one.
    """
    starts = {r.start_key: next(iter(r.looks.values())) for r in results if r.looks and r.starts_from_sft}
    rows = []
    for result in results:
        last = 0
        points = {-1: starts[result.start_key]} if result.start_key in starts else {}
        for iteration, looks in (points | result.looks).items():
            done = max(0, iteration)
            known = [reward for own in result.returns[last:done] for reward in own]
            last = done
            rewards = [float(look["reward"]) for look in looks]
            rows.append(
                {"arm": result.run.arm, "seed": result.run.seed, "iteration": iteration}
                | dict(zip(COSTS, result.costs(iteration).tolist(), strict=True))
                | {"amortised_rollouts": result.rollouts_without_values(iteration)}
                | {"success": float(np.mean(rewards)), "rewards": rewards}
                | {"training_return": float(np.mean(known)) if known else None}
                | {"task_ids": [look["task_id"] for look in looks]}
                | {"clusters": [result.clusters[look["task_id"]] for look in looks]}
            )
    return rows


def spending_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the rows of the table `spending`."""
    rows = []
    for result in results:
        parts = {**result.upstream, "actor": result.by_iteration.sum(axis=0)}
        if result.refreshes:
            parts["refresh"] = sum(result.refreshes.values(), np.zeros(3))
        for stage, cost in parts.items():
            rows.append(
                {"arm": result.run.arm, "seed": result.run.seed, "stage": stage}
                | dict(zip(COSTS, cost.tolist(), strict=True))
                | {"amortised_rollouts": result.learnable(stage)}
            )
    return rows
