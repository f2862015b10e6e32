"""The rows of a comparison's tables."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from stages.wiring.arm_results import COSTS, Result


def comparison_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the rows of the table `comparison`.

    A run's curve begins with the starting policy where some run's actor began with that very one.
    """
    shared = Counter(key for result in results for key in result.keys.values())
    starts = {r.keys["sft"]: next(iter(r.looks.values())) for r in results if r.looks and r.starts_from_sft}
    rows = []
    for result in results:
        last = 0
        start = starts.get(result.keys.get("sft", ""))
        points = {-1: start} if start else {}
        for iteration, looks in (points | result.looks).items():
            done, full, divided = (
                max(0, iteration),
                result.costs(iteration, {}),
                result.costs(iteration, shared),
            )
            known = [reward for own in result.returns[last:done] for reward in own]
            last = done
            rewards = [float(look["reward"]) for look in looks]
            rows.append(
                {"arm": result.run.arm, "seed": result.run.seed, "iteration": iteration}
                | dict(zip(COSTS, full.tolist(), strict=True))
                | {"amortised_rollouts": divided[0], "amortised_tokens": divided[1]}
                | {"own_rollouts": result.stored_rollouts * (iteration >= 0) + float(result.own[:done].sum())}
                | {"success": float(np.mean(rewards)), "rewards": rewards}
                | {"training_return": float(np.mean(known)) if known else None}
                | {"task_ids": [look["task_id"] for look in looks]}
                | {"clusters": [result.clusters[look["task_id"]] for look in looks]}
            )
    return rows


def spending_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the rows of the table `spending`."""
    shared = Counter(key for result in results for key in result.keys.values())
    rows = []
    for result in results:
        parts = {**result.upstream, "actor": result.by_iteration.sum(axis=0)}
        if result.refreshes:
            parts["refresh"] = sum(result.refreshes.values(), np.zeros(3))
        for stage, cost in parts.items():
            rows.append(
                {"arm": result.run.arm, "seed": result.run.seed, "stage": stage}
                | dict(zip(COSTS, cost.tolist(), strict=True))
                | {"shared_by": shared.get(result.keys.get(stage, ""), 1)}
            )
    return rows
