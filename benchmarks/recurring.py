"""Where companies recur: the arms of configs/comparison-recurring.yaml, one seed at a time.

    python -m benchmarks.recurring --seeds 0 --results benchmarks/results

As benchmarks/sparse.py, whose page says the rest. Each seed has a start of its own, from a policy that
configs/phone-l3-tiny.yaml teaches with that seed, shown how to heed feedback besides. A seed takes some two
and a half hours of one core.
"""

import sys
from collections.abc import Iterator

from benchmarks._regimes import asked_of, comparison_made, looks_of
from benchmarks._results import Row
from benchmarks._run import Asked, Benchmark, main
from benchmarks.long_start import base_of

HEEDS = (
    *("sft.guided_share=0.6", "sft.follows_feedback=0.95"),
    *("prompt.verbosity=corrective", "prompt.max_feedback_tokens=500"),
)


def measure(asked: Asked) -> Iterator[Row]:
    """Makes a seed's start and its runs, and yields its looks."""
    config = asked_of("recurring", asked)
    config["sft"]["base"] = str(base_of(asked, "recurring-base", HEEDS))
    return looks_of(comparison_made(config, f"recurring-seed{asked.seed}", asked))


BENCHMARK = Benchmark("recurring", __doc__, measure, seeds=(0, 1, 2, 3, 4), options={"arms": ""})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
