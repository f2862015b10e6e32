"""The ablations of benchmarks/ablations.py where success is sparse.

    python -m benchmarks.sparse_ablations --results benchmarks/results     # seeds 0 to 4

That module explains the variants.
"""

import sys

from benchmarks._material import QUICK
from benchmarks._run import Benchmark, main
from benchmarks.ablations import measure

BENCHMARK = Benchmark(
    "sparse_ablations",
    __doc__,
    measure,
    seeds=(0, 1, 2, 3, 4),
    quick=QUICK,
    options={"regimes": "sparse"},
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
