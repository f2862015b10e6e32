"""How fast one real GPU trains and changes turns: layers compiled, buffers kept, one rank's share of 8B.

    python -m benchmarks.gpu_speed                          # six minutes on an H200 with 16 cores
    python -m benchmarks.gpu_speed --quick --device cpu     # that every check works, without a GPU

Checks run as those of `benchmarks.one_gpu`, which says what is measured how.
"""

import sys

from benchmarks._results import Criteria
from benchmarks._run import Benchmark, main
from benchmarks.one_gpu import measure, under

CHECKS = ("full", "fused", "turns", "one_rank", "zero2", "plain")

CRITERIA: Criteria = {
    "compiled layers: scoring as training": under(1e-3, "scoring in bf16, compiled", "nats to training"),
    "turns: the same to the bit": lambda t: t("trainer, 1.7B, second turn", "the same to the bit") == 1,
    "one rank of 8B: half of the peak": lambda t: (
        max(t(variant, "model FLOP utilisation") for variant in t.variants("peak GiB")) >= 0.5
    ),
}

BENCHMARK = Benchmark(
    "gpu_speed",
    __doc__,
    measure,
    CRITERIA,
    quick=("quick",),
    options={"device": "cuda", "only": " ".join(CHECKS), "seconds": 540},
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
