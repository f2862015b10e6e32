"""From recorded sessions of a mediocre agent to a better one, without any fresh rollout.

    python -m benchmarks.recorded                   # seeds 0, 1, 2: each about half an hour of one core
    python -m benchmarks.recorded --quick           # tiny sizes: all of it works, nothing is judged

The recorder is the demo's starting policy. It plays each training task three times; what is kept of that is
messages and a price-graded reward (`vdapo export --to sessions`), no log-probabilities. Every arm starts from
the recorder's weights and learns from these sessions alone. Afterwards each policy plays the same held-out
tasks with the same seeds: first tries at temperature 1, gains paired by task, intervals over companies.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks._material import linked
from benchmarks._results import Row, Table, measured
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from env.play.chains import Chained, plan_groups
from env.play.stripping import is_success
from pipeline.artifacts.artifact import Artifact
from pipeline.config import load_config
from pipeline.exports.files import write_json_lines
from pipeline.exports.selection import Selection
from pipeline.exports.sessions import sessions_in
from pipeline.statistics import ClusterBootstrap, Interval
from pipeline.tables import tasks_from
from pipeline.types import Task
from stages.settings import Config

RECORDER, CONFIG = "configs/demo.yaml", "configs/recorded.yaml"
PLAYED = (
    "rollouts.chain={num_attempts: 1, draws: 3, feedback_free_share: 0, feedback_free_draws: 1}",
    "tasks.reward=priced",
)
SHARED = ("tasks", "sft", "rollouts")
START, CLONED, SFT = "recorded agent", "behaviour cloning", "sft above .7"
DPO, STORED = "dpo", "stored V-DAPO"
ARMS = {
    STORED: (("labels", "critic", "stored"), ("stored.objective.on_weak_critic=allow",)),
    DPO: (("preferences", "dpo"), ("stored.objective.kind=none",)),
}
"""Arm -> what it makes of the recorded rollouts, the last one its policy, and with which settings."""
IMITATED = {CLONED: "null", SFT: "0.7"}
"""Arm -> `sft.data.above`."""
UPDATES = 80  # of either: half an epoch of all sessions, two or three of the good ones [start value]
ONE_CORE = "training.threads=1"  # so seeds may run beside each other
Tries = dict[str, tuple[float, bool]]
"""task_id -> reward and success of a policy's first try."""
QUICK = (
    "engine.max_live=64",
    "training={threads: 1, micro_batch_tokens: 4096}",
    "tasks={num_companies: 12, num_train: 24, num_held_out: 8, level_shares: {1: 1.0}, reward: priced}",
    "sampling.max_response_tokens=256",
)
QUICK_RECORDER = (
    "sft={model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}, "
    "shares: {oracle: 0.3, over_collector: 0.5, noisy_adaptive: 0.2}, num_demonstrations: 192, "
    "num_updates: 150, batch_rows: 16, learning_rate: 0.01, practice_tasks: 0}",
)
QUICK_ARMS = (
    "critic={fit_share: 0.5, validate_share: 0.25, head_updates: 2, head_learning_rate: 0.001, "
    "learning_rate: 0.0005, max_epochs: 1, batch_states: 32, evaluations_per_epoch: 1}",
    *("sft.batch_rows=8", "stored.batch_rows=8", "stored.max_epochs=1"),
)


def best_gain(table: Table) -> bool:
    """Returns whether some arm is at least 15 points better than the recorded agent."""
    return max(table(arm, "gain") for arm in (*ARMS, *IMITATED)) >= 0.15


def recorded(asked: Asked) -> tuple[Path, Path]:
    """Returns the recorder's run and the file of its sessions, both made if need be."""
    run = f"recorder-seed{asked.seed}"
    settings = [ONE_CORE, *PLAYED, *(QUICK_RECORDER if asked.is_quick else ()), *asked.settings]
    make_stages(RECORDER, run, ("tasks", "sft", "rollouts"), settings, asked.data_dir)
    file = asked.data_dir / f"{run}-sessions.jsonl"
    if not file.exists():
        write_json_lines(file, sessions_in(Selection(asked.data_dir / run)))
    return asked.data_dir / run, file


def shared(asked: Asked, recorder: Path, sessions: Path) -> list[str]:
    """Returns the settings of every arm."""
    return [
        ONE_CORE,
        f"sft.base={json.dumps(str(recorder / 'sft' / 'policy'))}",
        f"rollouts.solutions={json.dumps(str(sessions))}",
        *(QUICK_ARMS if asked.is_quick else ()),
        *asked.settings,
    ]


def policies(asked: Asked, recorder: Path, sessions: Path) -> Iterator[tuple[str, Path]]:
    """Yields each arm with the folder of its policy, the recorded agent first."""
    settings = shared(asked, recorder, sessions)
    yield START, recorder / "sft" / "policy"
    run = f"recorded-seed{asked.seed}"
    make_stages(CONFIG, run, SHARED, settings, asked.data_dir)
    for arm, (stages, chosen) in ARMS.items():
        folder = linked(asked.data_dir, run, stages[-1], SHARED)
        make_stages(CONFIG, folder.name, stages, [*settings, *chosen], asked.data_dir)
        yield arm, folder / stages[-1] / "policy"
    for arm, above in IMITATED.items():
        folder = linked(asked.data_dir, run, f"above-{above}", ("tasks",))
        data = f"sft.data={{source: {json.dumps(str(sessions))}, above: {above}}}"
        number = f"sft.num_updates={20 if asked.is_quick else UPDATES}"
        make_stages(CONFIG, folder.name, ("sft",), [*settings, data, number], asked.data_dir)
        yield arm, folder / "sft" / "policy"


def held_out(asked: Asked, recorder: Path) -> tuple[Config, list[Task]]:
    """Returns how policies play, and the tasks that they play."""
    overrides = [ONE_CORE, *asked.settings, f"run.data_dir={json.dumps(str(asked.data_dir))}"]
    config = load_config(Config, ROOT / CONFIG, overrides)
    every = tasks_from(Artifact.open(recorder, "tasks").table("tasks"))
    return config, [task for task in every if task.split in config.held_out]


def first_tries(config: Config, policy: Path, tasks: Sequence[Task]) -> Tries:
    """Returns a policy's first tries, with seeds that all policies share."""
    from env.play.team import Team
    from stages.wiring.hands import Recipe, make_hands

    seed = config.run.seed
    groups = plan_groups(tasks, stage_key="recorded", seed=seed, iteration=0, num_attempts=1, draws=1)
    chained = Chained(groups, seed, "recorded", config.prompt.max_feedback_tokens, stop_at_success=False)
    with closing(make_hands(config)) as hands:
        rollouts = Team(hands, Recipe(config, policy)).play(chained, lambda _: None).rollouts
    return {r.task_id: (r.reward, is_success(r)) for r in rollouts if r.reward is not None}


def figures_of(tries: Tries, before: Tries, tasks: Sequence[Task]) -> dict[str, Interval]:
    """Returns a policy's success, mean reward and gain in success over another's, with intervals."""
    both = [task for task in tasks if task.task_id in tries and task.task_id in before]
    boot = ClusterBootstrap([task.cluster for task in both], 2000)
    reward, success = (np.array([float(tries[t.task_id][i]) for t in both]) for i in (0, 1))
    then = np.array([float(before[t.task_id][1]) for t in both])
    means = {"success": success, "reward": reward, "gain": success - then}
    return {name: boot.mean(column) for name, column in means.items()}


def measure(asked: Asked) -> Iterator[Row]:
    """Yields the rows of a seed, arm by arm; what is made already is read."""
    recorder, sessions = recorded(asked)
    config, tasks = held_out(asked, recorder)
    before: Tries = {}
    yield from measured("sessions", {"number": sessions.read_bytes().count(b"\n")})
    for arm, policy in policies(asked, recorder, sessions):
        tries = first_tries(config, policy, tasks)
        before = before or tries
        yield from measured(arm, figures_of(tries, before, tasks), len(tries))
    gate = Artifact.open(asked.data_dir / f"recorded-seed{asked.seed}-stored", "stored").report["critic_gate"]
    skills = {name: tuple(gate[name].values()) for name in gate if name.startswith("skill_over_")}
    yield from measured("critic", {"gate passed": not gate["reasons"], **skills}, gate["rollouts"])


BENCHMARK = Benchmark(
    "recorded",
    __doc__,
    measure,
    {"the best arm gains >= 15 points": best_gain},
    seeds=(0, 1, 2),
    quick=QUICK,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
