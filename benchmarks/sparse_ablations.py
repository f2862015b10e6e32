"""The ablations of benchmarks/ablations.py where success is sparse.

    python -m benchmarks.sparse_ablations --results benchmarks/results     # seeds 0 to 4

That module explains the variants.
"""

import sys
from dataclasses import replace

from benchmarks import ablations
from benchmarks._run import main

BENCHMARK = replace(ablations.BENCHMARK, name="sparse_ablations", doc=__doc__, options={"regimes": "sparse"})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
