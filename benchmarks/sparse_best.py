"""Decoupled clip with the best of nine settings where success is sparse, on reported seeds.

    python -m benchmarks.sparse_best --seeds 5 --results benchmarks/results

`benchmarks/sparse_grid.py` chose it, on seed 100: sixteen draws of half as many tasks (decision 0103). An arm
of configs/comparison-sparse.yaml on the seeds of benchmarks/sparse.py, which has the others, for as many
iterations as decoupled clip as shipped. A seed takes three quarters of an hour of one core.
"""

import sys

from benchmarks import sparse
from benchmarks._regimes import with_arms
from benchmarks._run import main

BENCHMARK = with_arms(sparse.BENCHMARK, "sparse_best", __doc__, "decoupled_clip_best")

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
