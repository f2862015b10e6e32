"""What a cheap critic's steps are worth without a stored phase, where success is sparse.

    python -m benchmarks.sparse_from_start --seeds 1 --results benchmarks/results

On seeds that nothing was chosen on: a critic of 300 tasks, as benchmarks/sparse_levers.py tried on seed 0,
beside decoupled clip, which is the same arm without its critic. What counts was fixed before the first run:
success at equal rollouts, all of the critic's counted, over seeds 1 to 5. A seed takes an hour of one core.
"""

import sys

from benchmarks._levers import looks_measure_of
from benchmarks._run import Benchmark, main
from benchmarks.sparse_levers import LEVERS

BENCHMARK = Benchmark(
    "sparse_from_start",
    __doc__,
    looks_measure_of("sparse", LEVERS, ("from_start",)),
    seeds=(1, 2, 3, 4, 5),
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
