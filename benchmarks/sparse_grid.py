"""Decoupled clip at its best where success is sparse: nine settings, on a seed that no comparison reports.

    python -m benchmarks.sparse_grid --results benchmarks/results

The stored phase of configs/comparison-sparse.yaml was chosen from as many (decision 0065). Each goes to what
v_dapo pays in all; the best is the one that is farthest ahead of decoupled clip as shipped at equal rollouts.
A setting takes some five minutes of one core, their starting policy 25.
"""

import sys
from typing import Any

from benchmarks._levers import Levers, measure_of
from benchmarks._run import Benchmark, main

TWICE: dict[str, Any] = {"actor.num_iterations": 32, "actor.evaluate_every": 6}
"""Iterations of half as many rollouts."""
SETTINGS: dict[str, dict[str, Any]] = {
    # As shipped: 3e-4, two updates of 16 tasks an iteration, eight draws of each, one refill, one pass.
    "rate_6e-4": {"actor.learning_rate": 6.0e-4},
    "rate_1e-3": {"actor.learning_rate": 1.0e-3},
    "passes": {"actor.passes": 2},
    "on_policy": {"actor.updates_per_iteration": 1} | TWICE,
    "small_updates": {"actor.tasks_per_update": 8} | TWICE,
    "draws_16": {"actor.tasks_per_update": 8, "actor.chain": {"num_attempts": 1, "draws": 16}},
    "refills": {"actor.max_refills": 10},
    "history_filter": {"actor.credit": {"mode": "decoupled_clip", "history_filter": "uniform"}},
}
LEVERS: Levers = {
    name: ("decoupled_clip", "decoupled_clip", {"actor.num_iterations": 16} | changed)
    for name, changed in SETTINGS.items()
}

BENCHMARK = Benchmark(
    "sparse_grid", __doc__, measure_of("sparse", LEVERS), seeds=(100,), options={"levers": ""}
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
