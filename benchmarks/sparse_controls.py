"""What wins where success is sparse: feedback, or that it is learnt in a stored phase?

    python -m benchmarks.sparse_controls --seeds 5 --results benchmarks/results

Two arms of configs/comparison-sparse.yaml on the seeds of benchmarks/sparse.py, which has the others:
`no_feedback` is no_critic with a stored phase of as many bare rollouts; `stripped` is decoupled clip with the
same feedback and no stored phase. Both were named before they ran and tuned nowhere. A seed takes some forty
minutes of one core.
"""

import sys

from benchmarks import sparse
from benchmarks._regimes import with_arms
from benchmarks._run import main

BENCHMARK = with_arms(sparse.BENCHMARK, "sparse_controls", __doc__, "no_feedback,stripped")

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
