"""How often the starting policy of configs/comparison-long.yaml succeeds, before and after feedback.

    python -m benchmarks.long_start --results benchmarks/results

With 2,000 updates of sft and with 5,000, as many as configs/phone-l3-tiny.yaml takes, whose policy
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
    """Yields success of bare and guided attempts at each level, and how many bare ones make a number up.

    Intervals are Wilson's, over rollouts.
    """
    for updates in UPDATES:
        run = f"long-start-seed{asked.seed}-{updates}"
        settings = [*asked.settings, f"sft.num_updates={updates}"]
        make_stages(CONFIG, run, ("tasks", "sft", "rollouts"), settings, asked.data_dir)
        folder = asked.data_dir / run
        levels = {task["task_id"]: task["level"] for task in rows_of(folder, "tasks")}
        attempts = defaultdict(list)
        for rollout in rows_of(folder, "rollouts"):
            attempts[levels[rollout["task_id"]], rollout["guided"]].append(rollout)
        for (level, guided), found in sorted(attempts.items()):
            variant, context = f"{updates} updates, level {level}", "guided" if guided else "bare"
            success = sum(rollout["reward"] == 1 for rollout in found)
            yield from measured(variant, {context: wilson(success, len(found))}, len(found))
            if not guided:
                made_up = sum(any(e["code"] == "invalid_number" for e in r["events"]) for r in found)
                yield from measured(variant, {"made up": wilson(made_up, len(found))}, len(found))


def rows_of(folder: Path, stage: str) -> list[dict[str, Any]]:
    """Returns the rows of a stage's table of its own name."""
    return Artifact.open(folder, stage).table(stage).to_pylist()


BENCHMARK = Benchmark("long_start", __doc__, measure, seeds=(100,))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
