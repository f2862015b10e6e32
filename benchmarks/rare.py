"""Where success is rare: the arms of configs/comparison-rare.yaml, one seed at a time.

    python -m benchmarks.rare --seeds 0 --results benchmarks/results

As benchmarks/sparse.py, whose page says the rest. A seed takes an hour and a half of one core. `no_feedback`
is made where `--arms` names it: on some seeds one first try succeeds, and a stored phase refuses to learn
from one.
"""

import sys
from dataclasses import replace

from benchmarks._regimes import benchmark_of, comparison_of
from benchmarks._run import main

ARMS = [arm for arm in comparison_of("rare")["arms"] if arm != "no_feedback"]
BENCHMARK = replace(benchmark_of("rare", __doc__), options={"arms": ",".join(ARMS)})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
