"""The ablations of benchmarks/ablations.py where success is sparse.

    python -m benchmarks.sparse_ablations --results benchmarks/results     # seeds 0 and 5 to 8

That module explains the variants. Seeds 5 to 8 share the starting policies of benchmarks/sparse.py; they took
the place of 1 to 4 before any of them ran.
"""

import sys
from dataclasses import replace

from benchmarks import ablations
from benchmarks._run import main

BENCHMARK = replace(
    ablations.BENCHMARK,
    name="sparse_ablations",
    doc=__doc__,
    seeds=(0, 5, 6, 7, 8),
    options={"regimes": "sparse"},
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
