"""Levers where success is sparse: each changes an arm of configs/comparison-sparse.yaml.

    python -m benchmarks.sparse_levers --seeds 0 --results benchmarks/results          # every lever
    python -m benchmarks.sparse_levers --seeds 0 --levers oracle_16                    # into the data folder

The runs lie beside those of benchmarks/sparse.py. A difference is of one training each, its interval over
the tasks of a look alone. What is seen on a seed chooses no setting of benchmarks/sparse.py.
"""

import sys
from typing import Any

from benchmarks._levers import Levers, measure_of
from benchmarks._run import Benchmark, main
from benchmarks.levers import NOT_STORED, SHORT_AUDIT

FEW_TASKS: dict[str, Any] = SHORT_AUDIT | {"rollouts.num_tasks": 300, "critic.fit_share": 0.72}
LEVERS: Levers = {
    # The audit is all that the critic samples for itself. It had 120 tasks when this ran, and has 30 since.
    "short_audit": ("v_dapo", "no_critic", SHORT_AUDIT),
    "alpha_0": ("v_dapo", "no_critic", SHORT_AUDIT | {"actor.credit.alpha": 0.0}),
    # The most that any critic could do, its continuations paid for or not.
    "oracle_16": (
        "oracle",
        "no_critic",
        SHORT_AUDIT | {"actor.credit.drift.num_continuations": 16, "actor.num_iterations": 6},
    ),
    # Sets of eight that all fail tell decoupled clip nothing; there steps that gain value may.
    "from_start": ("v_dapo", "decoupled_clip", NOT_STORED | FEW_TASKS | {"actor.num_iterations": 36}),
}

BENCHMARK = Benchmark(
    "sparse_levers", __doc__, measure_of("sparse", LEVERS), seeds=(0, 1), options={"levers": ""}
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
