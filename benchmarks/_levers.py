"""Levers of a regime: each changes an arm of its comparison, and is held against the arm beside it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks._looks import beside_at_equal_cost
from benchmarks._regimes import comparison_made, config_of, looks_of
from benchmarks._results import Row, measured
from benchmarks._run import Asked
from pipeline.comparison import cost_to
from pipeline.report.comparison import Curves, curves_of

Levers = Mapping[str, tuple[str, str, Mapping[str, Any]]]
"""Lever -> the arm that it changes, the arm or lever that it is held against, what it changes."""
COUNTED = ("rollouts", "amortised_rollouts")
"""All that was paid for; of these what the policy may learn from, as if values of states cost nothing."""
TO_THRESHOLD = "rollouts to the threshold"


def config_with(regime: str, known: Levers, levers: Sequence[str]) -> Any:
    """Returns a regime's configuration with some of its known levers, and what they are held against."""
    config = config_of(regime)
    arms = config["comparison"]["arms"]
    levers = list(levers)
    levers += [known[name][1] for name in levers if known[name][1] in known]
    chosen = {known[name][1]: arms[known[name][1]] for name in levers if known[name][1] in arms}
    chosen |= {name: arms[known[name][0]] | known[name][2] for name in levers}
    config["comparison"] |= {"arms": chosen, "method": next(iter(chosen))}
    return config


def measure_of(regime: str, known: Levers) -> Callable[[Asked], Iterator[Row]]:
    """Returns what makes the runs of a seed's levers, those that `--levers` names or all.

    It yields what each ended with and has over the arm beside it.
    """

    def measure(asked: Asked) -> Iterator[Row]:
        names, seed = asked.options.levers.split(",") if asked.options.levers else list(known), asked.seed
        config = config_with(regime, known, names)
        found = comparison_made(config, f"{regime}-seed{seed}", asked)
        looks, spending = (found.table(name) for name in ("comparison", "spending"))
        curves = {cost: curves_of(looks, spending, cost) for cost in COUNTED}
        for name in curves["rollouts"]:
            own = {cost: by_arm[name][seed] for cost, by_arm in curves.items()}
            figures: dict[str, Any] = {"success at the end": own["rollouts"].observed[0, -1]}
            figures |= {cost: curve.costs[-1] for cost, curve in own.items()}
            [paid] = cost_to(
                config["comparison"]["threshold"], own["rollouts"].costs, own["rollouts"].observed
            )
            figures |= {TO_THRESHOLD: paid} if np.isfinite(paid) else {}
            if name in names and (beside := known[name][1]) in curves["rollouts"]:
                figures |= {f"ahead by {cost}": ahead(of, name, beside, seed) for cost, of in curves.items()}
            yield from measured(name, figures, len(looks[0]["task_ids"]))

    return measure


def looks_measure_of(regime: str, known: Levers, levers: Sequence[str]) -> Callable[[Asked], Iterator[Row]]:
    """Returns what makes a seed's runs of some levers and yields success at each look, and its cost."""

    def measure(asked: Asked) -> Iterator[Row]:
        config = config_with(regime, known, levers)
        return looks_of(comparison_made(config, f"{regime}-seed{asked.seed}", asked))

    return measure


def ahead(curves: Curves, name: str, beside: str, seed: int) -> tuple[float, float, float]:
    """Returns by how much a lever is ahead in success, at what the cheaper of the two spent."""
    found = beside_at_equal_cost([curves[name][seed]], [curves[beside][seed]], threshold=1.0)[1].difference
    return found.value, found.low, found.high
