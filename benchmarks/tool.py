"""Does a tiny policy learn when to ask? Feedback as a tool: demonstrations, then decoupled clip.

    python -m benchmarks.tool                    # seeds 0, 1, 2: each about ten minutes of one core
    python -m benchmarks.tool --quick            # tiny sizes: all of it works, nothing is judged

Under which of three cups is the coin? Half of the questions say so, `told`; the others do not, and
nobody can know, `hidden`. Feedback says that an answer was wrong, so who asks may try another cup. A policy
that knows when to ask does so where the coin is hidden. `group` and `batch` are what rewards are scaled by:
with the standard deviation of a set a call's price weighs as much as a success where all are right.

First tries on held-out tasks at temperature 1, starting policy beside actor. `called when wrong`: the share
of first answers that were wrong and were asked about; an answer that nobody asked about counts as it stood
at the end. Intervals are over clusters of tasks.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from benchmarks._material import linked
from benchmarks._results import Row, measured
from benchmarks._run import Asked, Benchmark, main, make_stages
from benchmarks.recorded import ONE_CORE
from env.feedback_tool.measures import call_measures
from pipeline.artifacts.artifact import Artifact
from pipeline.exports.files import write_json_lines
from pipeline.tables import rollouts_from, tasks_from

CONFIG = "configs/math-tool.yaml"
STAGES = ("tasks", "sft", "actor", "evaluation")
SCALES = ("batch", "group")
"""Of rewards in an update: `actor.credit.scale_rewards`."""
KINDS = {1: "told", 2: "hidden"}
CUPS = (
    "sampling.max_response_tokens=160",
    "sft.practice_tasks=0",
    "sft.num_demonstrations=14000",
    "sft.num_updates=600",
    "sft.shares={knows: 0.3, guesses: 0.1, knows+get_feedback: 0.3, guesses+get_feedback: 0.3}",
    "actor.num_iterations=40",
)
QUICK = (
    "engine.max_live=64",
    "actor.num_iterations=2",
    "actor.tasks_per_update=4",
    "evaluation.draws=1",
)
QUICK_SFT = (
    "sft.num_updates=150",
    "sft.num_demonstrations=128",
    "sft.practice_tasks=0",
    "sft.learning_rate=0.01",
    "sft.model={hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}",
)


def questions(number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yields rows of where a coin is, every second one without saying so; 20 rounds make a cluster."""
    rng = Random(seed)
    for i in range(number):
        cup, level = rng.choice("ABC"), 1 + i % 2
        said = f"the coin is under cup {cup}." if KINDS[level] == "told" else "where is the coin, A, B or C?"
        yield {
            "prompt": [{"role": "user", "content": f"Round {i}: {said}"}],
            "choices": ["left", "middle", "right"],
            "answer": cup,
            "level": level,
            "cluster": str(i // 20),
        }


def cups(asked: Asked, scale: str) -> Path:
    """Returns a run of cups, made or finished; its starting policy is made once for all scales."""
    start = asked.data_dir / f"cups-seed{asked.seed}"
    rows, (number, held_out) = start.with_suffix(".jsonl"), (40, 10) if asked.is_quick else (7000, 400)
    rows.parent.mkdir(parents=True, exist_ok=True)
    if not rows.exists():
        write_json_lines(rows, questions(number + 2 * held_out + 200, asked.seed))
    of = {"environment": "short+get_feedback", "rows": str(rows)}
    tasks = f"tasks={json.dumps(of | {'num_train': number, 'num_held_out': held_out})}"
    own = [ONE_CORE, *CUPS, *(QUICK_SFT if asked.is_quick else ()), *asked.settings, tasks]
    make_stages(CONFIG, start.name, STAGES[:2], own, asked.data_dir)
    run = linked(asked.data_dir, start.name, scale, STAGES[:2])
    own.append(f"actor.credit.scale_rewards={scale}")
    make_stages(CONFIG, run.name, STAGES[2:], own, asked.data_dir)
    return run


def calls(name: str, run: Path) -> Iterator[Row]:
    """Yields what calls came to, of starting policy and actor."""
    found = Artifact.open(run, "evaluation").report["feedback_tool"]
    for policy, measures in found.items():
        figures = {measure.replace("_", " "): of for measure, of in measures.items()}
        number = figures.pop("rollouts")
        yield from measured(f"{name}, {policy}", {k: tuple(of.values()) for k, of in figures.items()}, number)


def by_kind(run: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns (kind, policy) -> what calls came to, of first tries where the coin is told, or hidden."""
    every = tasks_from(Artifact.open(run, "tasks").table("tasks"))
    level, cluster = {t.task_id: t.level for t in every}, {t.task_id: t.cluster for t in every}
    found = Artifact.open(run, "evaluation")
    rollouts = rollouts_from(found.table("rollouts"), found.table("steps"))
    first = [r for r in rollouts if r.attempt == 0 and r.temperature > 0]
    return {
        (kind, policy): call_measures(
            [r for r in first if r.policy_digest == digest and level[r.task_id] == number], cluster, seed=0
        )
        for policy, digest in found.report["policies"].items()
        for number, kind in KINDS.items()
    }


def measure(asked: Asked) -> Iterator[Row]:
    """Yields the rows of a seed; what is made already is read."""
    for scale in SCALES:
        run = cups(asked, scale)
        for (kind, policy), of in by_kind(run).items():
            if policy == "actor" or scale == SCALES[0]:
                who = scale if policy == "actor" else policy
                figures = {name: tuple(of[name].values()) for name in ("called", "success", "reward")}
                yield from measured(f"{kind}, {who}", figures, of["rollouts"])
        yield from calls(scale, run)


BENCHMARK = Benchmark(
    "tool",
    __doc__,
    measure,
    {
        "at first asks as if it did not matter": lambda t: (
            t("hidden, start", "called") < 2 * t("told, start", "called")
        ),
        "asks in nine of ten where the coin is hidden": lambda t: t("hidden, batch", "called") >= 0.9,
        "asks in one of ten at most where it is told": lambda t: t("told, batch", "called") <= 0.1,
        "earns more": lambda t: t("batch, actor", "reward", "low") > t("batch, start", "reward", "high"),
    },
    seeds=(0, 1, 2),
    quick=QUICK,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
