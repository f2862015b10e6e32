"""The opponents beside decoupled clip where success is sparse: what each does for what V-DAPO pays, or more.

    python -m benchmarks.sparse_opponents --seeds 5 --results benchmarks/results

Arms of configs/comparison-sparse.yaml on the seeds of benchmarks/sparse.py, which has V-DAPO and decoupled
clip. They were named before they ran and tuned nowhere. A seed takes some hour of one core.
`direct_advantage` is made where `--arms` names it.
"""

import sys

from benchmarks import sparse
from benchmarks._regimes import with_arms
from benchmarks._run import main

BENCHMARK = with_arms(sparse.BENCHMARK, "sparse_opponents", __doc__, "grpo,imitation,tree_rpo,actor_critic")

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
