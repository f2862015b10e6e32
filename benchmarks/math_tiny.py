"""Sums in short lines (configs/math-tiny.yaml): three arms at equal rollouts, three seeds.

    python -m benchmarks.math_tiny          # some forty minutes on two cores; a call that was stopped goes on

It is `make comparison CONFIG=configs/math-tiny.yaml`, whose page and tables stay in `<data dir>/math-tiny`.
"""

import sys
from collections.abc import Sequence

from benchmarks._comparisons import comparison_rows
from benchmarks._results import Criteria, Row, at_least
from benchmarks._run import Asked, Benchmark, main

SEEDS = (0, 1, 2)
CRITERIA: Criteria = {
    f"seed {seed}: gain >= 20 points": at_least(0.20, f"v_dapo seed {seed}", "gain") for seed in SEEDS
}


def measure(asked: Asked) -> Sequence[Row]:
    """Returns the rows of the comparison; it has seeds of its own."""
    return comparison_rows("configs/math-tiny.yaml", "math-tiny", asked)


BENCHMARK = Benchmark("math_tiny", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
