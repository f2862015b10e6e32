"""Where success is rare: the arms of configs/comparison-rare.yaml, one seed at a time.

    python -m benchmarks.rare --seeds 0 --results benchmarks/results

As benchmarks/sparse.py, whose page says the rest. A seed takes an hour and a half of one core.
"""

import sys

from benchmarks._regimes import benchmark_of
from benchmarks._run import main

BENCHMARK = benchmark_of("rare", __doc__)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
