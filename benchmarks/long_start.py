"""How often a policy that learnt levels 1 to 3 succeeds at levels 3 to 5, before and after feedback.

    python -m benchmarks.long_start --results benchmarks/results

The starting policy of configs/comparison-long.yaml: that of configs/phone-l3-tiny.yaml with some updates at
those levels. A start that never succeeds teaches no arm anything, so it is asked first. Forty minutes of
one core.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._results import Row, measured
from benchmarks._run import Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact
from pipeline.statistics import wilson

CONFIG, EASIER = "configs/comparison-long.yaml", "configs/phone-l3-tiny.yaml"


def measure(asked: Asked) -> Iterator[Row]:
    """Yields success of bare and guided attempts at each level, and how many bare ones make a number up.

    Intervals are Wilson's, over rollouts.
    """
    run = f"long-start-seed{asked.seed}"
    settings = [*asked.settings, f"sft.base={base_of(asked)}", "rollouts.num_tasks=800"]
    settings.append("rollouts.chain={num_attempts: 2, draws: 1, feedback_free_share: 0.0}")
    make_stages(CONFIG, run, ("tasks", "sft", "rollouts"), settings, asked.data_dir)
    folder = asked.data_dir / run
    levels = {task["task_id"]: task["level"] for task in rows_of(folder, "tasks")}
    attempts = defaultdict(list)
    for rollout in rows_of(folder, "rollouts"):
        attempts[levels[rollout["task_id"]], rollout["guided"]].append(rollout)
    for (level, guided), found in sorted(attempts.items()):
        variant, context = f"level {level}", "guided" if guided else "bare"
        success = sum(rollout["reward"] == 1 for rollout in found)
        yield from measured(variant, {context: wilson(success, len(found))}, len(found))
        if not guided:
            made_up = sum(any(e["code"] == "invalid_number" for e in r["events"]) for r in found)
            yield from measured(variant, {"made up": wilson(made_up, len(found))}, len(found))


def base_of(asked: Asked, name: str = "long-base", taught: Sequence[str] = ()) -> Path:
    """Returns the policy of a seed that learnt levels 1 to 3, with settings of its own; made if need be."""
    run = f"{name}-seed{asked.seed}"
    make_stages(EASIER, run, ("tasks", "sft"), [*taught, *asked.settings], asked.data_dir)
    return asked.data_dir / run / "sft" / "policy"


def rows_of(folder: Path, stage: str) -> list[dict[str, Any]]:
    """Returns the rows of a stage's table of its own name."""
    return Artifact.open(folder, stage).table(stage).to_pylist()


BENCHMARK = Benchmark("long_start", __doc__, measure, seeds=(100,))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
