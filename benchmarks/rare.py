"""Where success is rarer than in configs/comparison-sparse.yaml: how far do stored rollouts lead then?

    python -m benchmarks.rare --seeds 0 --results benchmarks/results

The sparse comparison, but its starting policy saw fewer demonstrations that succeed (SHARES): sets of eight
first tries nearly all say nothing, while feedback still tells second attempts what to do. So an iteration
looks for sets that say something as long as decoupled clip's recipe does, of ten rounds more, and an audit
of the critic takes fewer tasks, which nearly all fail. A seed takes an hour and a half of one core.
"""

import sys
from collections.abc import Iterator

from benchmarks._regimes import asked_of, comparison_made, looks_of
from benchmarks._results import Row
from benchmarks._run import Asked, Benchmark, main

SHARES = {"fabricator": 0.97, "over_collector": 0.025, "prior_only": 0.005}
"""Of demonstrations; the fabricator makes values up, which always fails."""
ARMS = "v_dapo,no_critic,no_feedback,decoupled_clip"


def measure(asked: Asked) -> Iterator[Row]:
    """Makes a seed's runs and yields its looks."""
    config = asked_of("sparse", asked)
    config["sft"]["shares"] = SHARES
    config["actor"]["max_refills"] = 10
    config["critic_report"]["tasks_per_split"] = 30
    config["comparison"]["method"] = asked.options.arms.split(",")[0]
    if arm := config["comparison"]["arms"].get("decoupled_clip"):
        arm["actor.num_iterations"] = 50
    return looks_of(comparison_made(config, f"rare-seed{asked.seed}", asked))


BENCHMARK = Benchmark("rare", __doc__, measure, seeds=(0, 1, 2, 3, 4), options={"arms": ARMS})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
