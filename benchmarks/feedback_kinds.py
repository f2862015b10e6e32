"""Who should say why an attempt failed: rules in three verbosities, the policy itself, or nobody?

    python -m benchmarks.feedback_kinds          # seeds 0, 1, 2: each about fifty minutes of one core
    python -m benchmarks.feedback_kinds --quick  # tiny sizes: all of it works, nothing is judged

Every arm of configs/feedback-kinds.yaml plays each task twice at most and learns from what succeeded, after
the bare prompt. `none` plays it twice in any case, the second time without knowing of the first. It and
self-critique share the starting policy of corrective rules, the other verbosities have their own.

`first` and `second`: success of first attempts, and of second ones after a first one that failed. `start`,
`trained`, `gain`: first tries on held-out tasks before and after learning, paired by task. Intervals are over
companies. `texts`: how many were shown, those of rules too, how many of these give a hidden value away, and
what the guard made of what a model wrote.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks._material import linked
from benchmarks._results import Row, measured
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from benchmarks.recorded import ONE_CORE, Tries, figures_of, first_tries
from env.catalog import offer_of
from env.play.stripping import is_success
from pipeline.artifacts.artifact import Artifact
from pipeline.config import load_config
from pipeline.statistics import ClusterBootstrap, Interval
from pipeline.tables import rollouts_from, tasks_from
from pipeline.types import Rollout, Task
from stages.settings import Config

CONFIG = "configs/feedback-kinds.yaml"
TWICE = "rollouts.chain={num_attempts: 1, draws: 1, feedback_free_share: 1.0, feedback_free_draws: 2}"
VERBOSITIES = ("corrective", "observed", "binary")
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{f"rules, {verbosity}": (verbosity, ()) for verbosity in VERBOSITIES},
    "self-critique": ("corrective", ("feedback={kind: self}",)),
    "none": ("corrective", (TWICE,)),
}
"""Arm -> verbosity of its starting policy's demonstrations, and its own settings."""
QUICK = (
    "engine.max_live=64",
    "training={threads: 1, micro_batch_tokens: 4096}",
    "tasks={num_companies: 12, num_train: 24, num_held_out: 8, level_shares: {1: 1.0}}",
    "sft={model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}, "
    "shares: {oracle: 0.5, over_collector: 0.5}, num_demonstrations: 192, num_updates: 150, batch_rows: 16, "
    "learning_rate: 0.01, practice_tasks: 0}",
    "sampling.max_response_tokens=256",
    "rollouts.num_tasks=24",
    "stored={objective: {kind: likelihood}, batch_rows: 8, max_epochs: 1}",
)


def made(asked: Asked, arm: str) -> Path:
    """Returns the run of an arm, made or finished; its starting policy is made once for its verbosity."""
    verbosity, own = ARMS[arm]
    settings = [ONE_CORE, *asked.settings, f"prompt.verbosity={verbosity}"]
    start = f"kinds-seed{asked.seed}-{verbosity}"
    make_stages(CONFIG, start, ("tasks", "sft"), settings, asked.data_dir)
    run = linked(asked.data_dir, start, str(list(ARMS).index(arm)), ("tasks", "sft"))
    make_stages(CONFIG, run.name, ("rollouts", "stored"), [*settings, *own], asked.data_dir)
    return run


def attempts(rollouts: list[Rollout], cluster: Mapping[str, str]) -> Iterator[tuple[str, Interval, int]]:
    """Yields success of first attempts, and of second ones where the first failed, each with their number."""
    graded = [r for r in rollouts if r.reward is not None]
    of: list[list[Rollout]] = [[], []]
    for r in graded:
        of[max(r.attempt, r.draw)].append(r)  # attempt of a chain, or draw of a bare set
    failed = {r.task_id for r in of[0] if not is_success(r)}
    for name, some in (("first", of[0]), ("second", [r for r in of[1] if r.task_id in failed])):
        if some:
            boot = ClusterBootstrap([cluster[r.task_id] for r in some])
            yield name, boot.mean(np.array([float(is_success(r)) for r in some])), len(some)


def texts(rollouts: list[Rollout], tasks: Mapping[str, Task]) -> dict[str, int]:
    """Returns how many texts were shown, how many of these leak, and what became of those of a model."""
    gives_away = offer_of("phone").gives_away
    heard = {name for r in rollouts if r.guided for name in r.parent_rollout_ids}
    shown = [r for r in rollouts if r.rollout_id in heard]
    statuses = Counter(r.feedback_status for r in rollouts if r.feedback_status)
    leaks = sum(gives_away(tasks[r.task_id], r.feedback_text) for r in shown)
    counts = {"texts shown": len(shown), "of these leaks": leaks}
    return counts | {f"texts: {status}": number for status, number in sorted(statuses.items())}


def measure(asked: Asked) -> Iterator[Row]:
    """Yields the rows of a seed, arm by arm; what is made already is read."""
    overrides = [ONE_CORE, *asked.settings, f"run.data_dir={json.dumps(str(asked.data_dir))}"]
    config, before = load_config(Config, ROOT / CONFIG, overrides), dict[str, Tries]()
    for arm, (verbosity, _) in ARMS.items():
        run = made(asked, arm)
        tasks = {t.task_id: t for t in tasks_from(Artifact.open(run, "tasks").table("tasks"))}
        played = Artifact.open(run, "rollouts")
        rollouts = rollouts_from(played.table("rollouts"), played.table("steps"))
        for name, success, number in attempts(rollouts, {t: task.cluster for t, task in tasks.items()}):
            yield from measured(arm, {name: success}, number)
        yield from measured(arm, {"rollouts": len(rollouts)} | texts(rollouts, tasks))
        held_out = [task for task in tasks.values() if task.split in config.held_out]
        if verbosity not in before:
            before[verbosity] = first_tries(config, run / "sft" / "policy", held_out)
        after = first_tries(config, run / "stored" / "policy", held_out)
        start = figures_of(before[verbosity], before[verbosity], held_out)["success"]
        found = figures_of(after, before[verbosity], held_out)
        figures = {"start": start, "trained": found["success"], "gain": found["gain"]}
        yield from measured(arm, figures, len(after))


BENCHMARK = Benchmark("feedback_kinds", __doc__, measure, seeds=(0, 1, 2), quick=QUICK)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
