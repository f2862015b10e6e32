"""What a cheap critic's steps are worth from the starting policy, without a stored phase.

    python -m benchmarks.from_start --seeds 5 --results benchmarks/results

On seeds that nothing was chosen on: V-DAPO at 1e-3 with a critic that is fitted to 216 tasks and audited on
30, as benchmarks/levers.py suggested on seeds 3 and 4; decoupled clip at that rate, which is the same arm
without its critic, and at 3e-4, its better rate on seeds 100 and 101. What counts was fixed before the
first run: success at equal rollouts, all of the critic's counted, over seeds 5 to 8; when those told nothing
sure, six more, 9 to 14, were named before they ran, and all ten together count, whatever the six say. A seed
takes a quarter to half an hour of one core.
"""

import sys

from benchmarks._levers import looks_measure_of
from benchmarks._run import Benchmark, main
from benchmarks.levers import LEVERS

ARMS = ("cheap_from_start_rate", "decoupled_clip_rate")
"""Beside decoupled clip itself, against which both are held."""


BENCHMARK = Benchmark(
    "from_start", __doc__, looks_measure_of("dense", LEVERS, ARMS), seeds=tuple(range(5, 15))
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
