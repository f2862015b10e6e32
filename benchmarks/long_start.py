"""How often the starting policy of configs/comparison-long.yaml succeeds, before and after feedback.

    python -m benchmarks.long_start --results benchmarks/results

With the configuration's updates of sft and with as many as configs/phone-l3-tiny.yaml takes, whose policy
solves a third of level 3. A start that never succeeds teaches no arm anything, so it is asked first. An hour
and a quarter of one core.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._results import Row, measured
from benchmarks._run import Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact
from pipeline.statistics import wilson

CONFIG = "configs/comparison-long.yaml"
UPDATES = (2000, 5000)


def measure(asked: Asked) -> Iterator[Row]:
    """Yields success of bare and guided attempts at each level, with Wilson's interval over rollouts."""
    for updates in UPDATES:
        run = f"long-start-seed{asked.seed}-{updates}"
        settings = [*asked.settings, f"sft.num_updates={updates}"]
        make_stages(CONFIG, run, ("tasks", "sft", "rollouts"), settings, asked.data_dir)
        folder = asked.data_dir / run
        levels = {task["task_id"]: task["level"] for task in rows_of(folder, "tasks")}
        rewards = defaultdict(list)
        for rollout in rows_of(folder, "rollouts"):
            context = "guided" if rollout["guided"] else "bare"
            rewards[levels[rollout["task_id"]], context].append(rollout["reward"])
        for (level, context), found in sorted(rewards.items()):
            success = wilson(sum(reward == 1 for reward in found), len(found))
            yield from measured(f"{updates} updates, level {level}", {context: success}, len(found))


def rows_of(folder: Path, stage: str) -> list[dict[str, Any]]:
    """Returns the rows of a stage's table of its own name."""
    return Artifact.open(folder, stage).table(stage).to_pylist()


BENCHMARK = Benchmark("long_start", __doc__, measure, seeds=(100,))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
