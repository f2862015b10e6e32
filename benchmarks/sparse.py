"""Where success is sparse: the arms of configs/comparison-sparse.yaml, one seed at a time.

    python -m benchmarks.sparse --seeds 5                                    # every arm
    python -m benchmarks.sparse --seeds 5 --arms v_dapo,no_critic,decoupled_clip --results benchmarks/results

These three arms take some fifty minutes of one core a seed, all of them over two hours; a call that
was stopped goes on. `make comparison CONFIG=configs/comparison-sparse.yaml` makes all seeds in one go, with
tests over seeds and tasks; seeds made apart have the same runs, and docs/results.md draws its intervals over
seeds alone. Seeds 5 to 9, named before any ran: what seed 0 said of the audit (decision 0092) chose it.
"""

import sys

from benchmarks._regimes import benchmark_of
from benchmarks._run import main

BENCHMARK = benchmark_of("sparse", __doc__, seeds=(5, 6, 7, 8, 9))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
