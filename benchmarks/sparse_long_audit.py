"""Where success is sparse, with an audit of 120 tasks in place of 30.

    python -m benchmarks.sparse_long_audit --seeds 0 --arms v_dapo,no_critic,decoupled_clip

What benchmarks/sparse.py measured on seeds 0 to 4 before the audit became shorter (decision 0095).
"""

import sys
from collections.abc import Iterator

from benchmarks._regimes import asked_of, comparison_made, looks_of
from benchmarks._results import Row
from benchmarks._run import Asked, Benchmark, main


def measure(asked: Asked) -> Iterator[Row]:
    """Makes a seed's runs and yields its looks."""
    config = asked_of("sparse", asked)
    config["critic_report"]["tasks_per_split"] = 120
    return looks_of(comparison_made(config, f"sparse-long-audit-seed{asked.seed}", asked))


BENCHMARK = Benchmark("sparse_long_audit", __doc__, measure, seeds=(0, 1, 2, 3, 4), options={"arms": ""})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
