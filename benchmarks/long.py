"""Where episodes are long: the arms of configs/comparison-long.yaml, one seed at a time.

    python -m benchmarks.long --seeds 0 --arms v_dapo,no_critic,decoupled_clip --results benchmarks/results

As benchmarks/sparse.py, whose page says the rest. Each seed has a start of its own, from the policy that
configs/phone-l3-tiny.yaml teaches with that seed.
"""

import sys
from collections.abc import Iterator

from benchmarks._regimes import asked_of, comparison_made, looks_of
from benchmarks._results import Row
from benchmarks._run import Asked, Benchmark, main
from benchmarks.long_start import base_of


def measure(asked: Asked) -> Iterator[Row]:
    """Makes a seed's start and its runs, and yields its looks."""
    config = asked_of("long", asked)
    config["sft"]["base"] = str(base_of(asked))
    return looks_of(comparison_made(config, f"long-seed{asked.seed}", asked))


BENCHMARK = Benchmark("long", __doc__, measure, seeds=(0, 1, 2, 3, 4), options={"arms": ""})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
