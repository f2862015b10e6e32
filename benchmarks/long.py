"""Where episodes are long: the arms of configs/comparison-long.yaml, one seed at a time.

    python -m benchmarks.long --seeds 0 --arms v_dapo,no_critic,decoupled_clip --results benchmarks/results

As benchmarks/sparse.py, whose page says the rest.
"""

import sys

from benchmarks._regimes import benchmark_of
from benchmarks._run import main

BENCHMARK = benchmark_of("long", __doc__)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
