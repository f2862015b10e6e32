"""Does a tiny policy learn when to ask? Feedback as a tool, configs/math-tool.yaml: sft, then decoupled clip.

    python -m benchmarks.tool                    # seeds 0, 1, 2: each about twenty minutes of one core
    python -m benchmarks.tool --quick            # tiny sizes: all of it works, nothing is judged

First tries on held-out tasks at temperature 1, starting policy beside actor. To ask when needed is to ask
about first answers that are wrong, and not about those that are right; an answer counts as it stood when the
policy asked, or at the end if it never did. Intervals are over clusters of tasks.
"""

import sys
from collections.abc import Iterator

from benchmarks._results import Row, measured
from benchmarks._run import Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact

CONFIG = "configs/math-tool.yaml"
ONE_CORE = "training.threads=1"  # so seeds may run beside each other
QUICK = (
    "engine.max_live=64",
    "tasks={environment: math+get_feedback, num_train: 16, num_held_out: 8, families: {chain_add: 1.0}, "
    "level_shares: {1: 1.0}}",
    "sft={model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}, "
    "num_demonstrations: 128, num_updates: 150, batch_rows: 16, learning_rate: 0.01, practice_tasks: 0, "
    "guided_share: 0.0, shares: {careful: 0.3, careless+get_feedback: 0.7}}",
    "actor.num_iterations=2",
    "actor.tasks_per_update=4",
    "evaluation.draws=1",
)
WRONG, RIGHT = "called when wrong", "called when right"


def measure(asked: Asked) -> Iterator[Row]:
    """Yields what calls came to, of the starting policy and of the actor."""
    run = f"math-tool-seed{asked.seed}"
    stages = ("tasks", "sft", "actor", "evaluation")
    make_stages(CONFIG, run, stages, [ONE_CORE, *asked.settings], asked.data_dir)
    found = Artifact.open(asked.data_dir / run, "evaluation").report["feedback_tool"]
    for policy, measures in found.items():
        number = measures.pop("rollouts")
        figures = {name.replace("_", " "): tuple(of.values()) for name, of in measures.items()}
        yield from measured(policy, figures, number)


BENCHMARK = Benchmark(
    "tool",
    __doc__,
    measure,
    {
        "asks about wrong answers twice as often as about right ones": lambda t: (
            t("actor", WRONG, "low") > 2 * t("actor", RIGHT, "high")
        ),
        "starts without knowing when": lambda t: t("start", WRONG) < 2 * t("start", RIGHT),
        "earns more": lambda t: t("actor", "reward", "low") > t("start", "reward", "high"),
    },
    seeds=(0, 1, 2),
    quick=QUICK,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
