"""Where success is dense: the arms of configs/comparison-dense.yaml, one seed at a time.

    python -m benchmarks.dense --seeds 0 --arms v_dapo,no_critic,decoupled_clip --results benchmarks/results

As benchmarks/sparse.py, whose page says the rest.
"""

import sys

from benchmarks._regimes import benchmark_of
from benchmarks._run import main

BENCHMARK = benchmark_of("dense", __doc__)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
