"""The opponents beside decoupled clip where success is sparse: what each does for what V-DAPO pays, or more.

    python -m benchmarks.sparse_opponents --seeds 5 --results benchmarks/results

Arms of configs/comparison-sparse.yaml on the seeds of benchmarks/sparse.py, which has V-DAPO and decoupled
clip. They were named before they ran and tuned nowhere. A seed takes some hour of one core.
`direct_advantage` is made where `--arms` names it.
"""

import sys
from dataclasses import replace

from benchmarks import sparse
from benchmarks._regimes import measure_of
from benchmarks._run import main

BENCHMARK = replace(
    sparse.BENCHMARK,
    name="sparse_opponents",
    doc=__doc__,
    measure=measure_of("sparse", "sparse-opponents"),
    options={"arms": "grpo,imitation,tree_rpo,actor_critic"},
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
