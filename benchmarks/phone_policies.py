"""Plays the scripted yardstick policies and prints what each achieves, level by level.

    python benchmarks/phone_policies.py --tasks 500

Success with its Wilson interval, the mean priced reward, and turns; written to
benchmarks/results/phone_policies.json. Feedback rows replay the failed first attempts of a policy and
let the adaptive policy try again, told what the feedback says.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from env.phone.levels import LEVELS, MAX_PRICE
from env.phone.policies import POLICIES, play_scripted
from env.phone.tasks import generate_tasks
from pipeline.statistics import wilson
from pipeline.types import Task, Verdict

RESULTS = Path(__file__).parent / "results" / "phone_policies.json"
SPLITS = ("train", "test_unseen_company", "test_unseen_industry", "test_shifted_prior")


def row_of(level: int, split: str, policy: str, verdicts: list[Verdict]) -> dict[str, Any]:
    """Returns one line of the table: success, its 95 % interval, mean priced reward, mean messages."""
    count = len(verdicts)
    successes = sum(bool(v.success) for v in verdicts)
    interval = wilson(successes, count)
    return {
        "level": level,
        "split": split,
        "policy": policy,
        "tasks": count,
        "success": successes / count,
        "low": interval.low,
        "high": interval.high,
        "priced": sum(bool(v.success) * (1 - min(v.cost, MAX_PRICE)) for v in verdicts) / count,
        "turns": sum(len(v.steps) for v in verdicts) / count,
    }


def second_attempts(tasks: list[Task], policy: str, seed: int, noise: float) -> list[Verdict]:
    """Returns the adaptive policy's verdicts on the tasks that `policy` failed, told of that failure."""
    verdicts = []
    for task in tasks:
        actions, _, verdict = play_scripted(task, policy, seed, noise)
        if not verdict.success:
            verdicts.append(play_scripted(task, "adaptive", seed + 1, earlier=[actions])[2])
    return verdicts


def main() -> None:
    """Plays, prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=500, help="tasks of each level and split")
    parser.add_argument("--companies", type=int, default=200, help="companies of each level, over all splits")
    parser.add_argument("--noise", type=float, default=0.2, help="share of random acts of noisy policies")
    parser.add_argument("--seed", type=int, default=0, help="of tasks and policies")
    options = parser.parse_args()
    rows = []
    for level in LEVELS:
        tasks = generate_tasks(
            num_companies=options.companies,
            num_train=options.tasks,
            num_val=1,
            num_test=options.tasks,
            level_shares={level: 1.0},
            seed=options.seed,
        )
        for split in SPLITS:
            chosen = [task for task in tasks if task.split == split]
            for policy in POLICIES:
                verdicts = [play_scripted(task, policy, options.seed, options.noise)[2] for task in chosen]
                rows.append(row_of(level, split, policy, verdicts))
            for policy in ("prior_only", "over_collector"):
                if verdicts := second_attempts(chosen, policy, options.seed, options.noise):
                    rows.append(row_of(level, split, f"adaptive after failed {policy}", verdicts))
    print(f"{'level':>5} {'split':22} {'policy':36} {'tasks':>5}  success {'95 %':>13}  priced  turns")
    for r in rows:
        print(
            f"{r['level']:>5} {r['split']:22} {r['policy']:36} {r['tasks']:>5} {r['success']:>8.3f} "
            f"[{r['low']:.3f} {r['high']:.3f}] {r['priced']:>7.3f} {r['turns']:>6.2f}"
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        json.dumps({"settings": vars(options), "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"wrote {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
