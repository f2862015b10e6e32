"""From recorded sessions on, week after week: three rounds of trained models, the second one sabotaged.

    python -m benchmarks.weeks                   # seeds 0, 1, 2: each half an hour of one core and more
    python -m benchmarks.weeks --quick           # tiny sizes: all of it works, nothing is judged

Recorder and sessions are those of `benchmarks.recorded`. The first policy that is served comes of the stored
phase, by likelihood of what earned more than .7. In weeks 1 and 3 what is served plays each training task
twice, and its candidate imitates what earned more than .7 of these. In week 2 somebody has turned the grades
of the recorded sessions round (1 - r), so its candidate imitates what failed: promotion must refuse it.
Policies then play the same held-out tasks with the same seeds, as in `benchmarks.recorded`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks._material import linked
from benchmarks._results import Row, measured, surely_positive
from benchmarks._run import Asked, Benchmark, main, make_stages
from benchmarks.recorded import (
    CONFIG,
    QUICK,
    SHARED,
    START,
    figures_of,
    first_tries,
    held_out,
    recorded,
    shared,
)
from pipeline.artifacts.artifact import Artifact
from pipeline.exports.files import write_json_lines
from pipeline.runs import rounds_of
from pipeline.served import served_policy

WEEKS, SABOTAGED = (1, 2, 3), 2
NEWEST = 6800  # what a week plays; the sabotaged one takes as many of its file
CHANGES = {
    "stored.learning_rate": 1e-3,  # as the demo's stored phase
    "stored.max_epochs": 2,  # [start value]
    "rollouts.chain": {"num_attempts": 1, "draws": 2, "feedback_free_share": 0, "feedback_free_draws": 1},
}
FIRST = ("stored.objective.kind=likelihood", "stored.learning_rate=1e-3", "stored.max_epochs=2")
"""Settings of the policy that is served before the first week."""


def turned_round(sessions: Path) -> Path:
    """Returns a file of the same sessions with 1 - r for the reward r of each, made if need be."""
    path = sessions.with_name(f"{sessions.stem}-turned-round.jsonl")
    if not path.exists():
        rows = map(json.loads, sessions.read_text("utf-8").splitlines())
        write_json_lines(path, (row | {"reward": 1 - row["reward"]} for row in rows))
    return path


def played(asked: Asked, recorder: Path, sessions: Path) -> Path:
    """Returns the run whose rounds are the weeks; all of them are decided."""
    settings = [*shared(asked, recorder, sessions), "evaluation.of=stored", f"replay.newest={NEWEST}"]
    before = f"recorded-seed{asked.seed}"
    make_stages(CONFIG, before, SHARED, settings, asked.data_dir)
    run = linked(asked.data_dir, before, "weeks", SHARED)
    make_stages(CONFIG, run.name, ("stored",), [*settings, *FIRST], asked.data_dir)
    for week in WEEKS:
        changes = dict(CHANGES)
        if week == SABOTAGED:
            changes |= {"rollouts.num_tasks": 0, "rollouts.solutions": str(turned_round(sessions))}
        own = [f"round.changes={json.dumps(changes)}", "--round", str(week)]
        make_stages(CONFIG, run.name, ("round",), [*settings, *FIRST, *own], asked.data_dir)
    return run


def week_rows(week: int, folder: Path) -> list[Row]:
    """Returns what traffic showed of a week's two policies, and what was decided."""
    decided = Artifact.open(folder, "promotion")
    arms = {row["arm"]: row for row in decided.table("monitoring").to_pylist()}
    decision, last = decided.report["decision"], decided.report["looks"][-1]
    figures = {f"{arm} success": row["success"] for arm, row in arms.items()}
    figures |= {"P(better)": last["better"], "P(worse)": last["worse"]}
    figures |= {"promoted": decision == "promote", "rolled back": decision == "roll_back"}
    return measured(f"week {week}", figures, sum(row["rollouts"] for row in arms.values()))


def measure(asked: Asked) -> Iterator[Row]:
    """Yields the rows of a seed; what is made already is read."""
    recorder, sessions = recorded(asked)
    run = played(asked, recorder, sessions)
    for week, folder in rounds_of(run):
        yield from week_rows(week, folder)
    config, tasks = held_out(asked, recorder)
    policies = {
        START: recorder / "sft" / "policy",
        "served at first": run / "stored" / "policy",
        "served at last": served_policy(run)[1],
    }
    tries = {name: first_tries(config, policy, tasks) for name, policy in policies.items()}
    for name, own in tries.items():
        yield from measured(name, figures_of(own, tries[START], tasks), len(own))
    gain = figures_of(tries["served at last"], tries["served at first"], tasks)["gain"]
    yield from measured("three weeks", {"gain": gain}, len(tasks))


BENCHMARK = Benchmark(
    "weeks",
    __doc__,
    measure,
    {
        "the sabotaged candidate is not served": lambda t: t(f"week {SABOTAGED}", "promoted") == 0,
        "what is served at last beats the recorded agent": surely_positive("served at last", "gain"),
    },
    seeds=(0, 1, 2),
    quick=QUICK,
)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
