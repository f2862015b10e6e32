"""Plays the scripted yardstick policies at every level and prints what each achieves.

    python benchmarks/phone_policies.py --tasks 500

Success with its Wilson interval, the mean priced reward, and messages; written to
benchmarks/results/phone_policies.json. Rows "A after B, observed" let A try the tasks that B failed, told
what the calls of that attempt taught; "corrective" tells it what would have helped, on all tasks.
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
from env.phone.tasks import SPLITS, generate_tasks
from pipeline.statistics import wilson
from pipeline.types import Task, Verdict

RESULTS = Path(__file__).parent / "results" / "phone_policies.json"
CORRECTED = "adaptive, 2nd attempt, corrective"


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


def rows_of_split(level: int, split: str, tasks: list[Task], seed: int, noise: float) -> list[dict[str, Any]]:
    """Returns the lines of all policies on some tasks, then those of second attempts."""
    rows = []
    failed: dict[str, list[Verdict]] = {"prior_only": [], "over_collector": [], "adaptive": []}
    corrected = []
    for policy in POLICIES:
        verdicts = []
        for task in tasks:
            actions, _, verdict = play_scripted(task, policy, seed, noise)
            verdicts.append(verdict)
            if policy in failed and not verdict.success:
                failed[policy].append(play_scripted(task, "adaptive", seed + 1, earlier=[actions])[2])
            if policy == "adaptive":
                again = play_scripted(task, policy, seed + 1, earlier=[actions], is_corrected=True)[2]
                corrected.append(again)
        rows.append(row_of(level, split, policy, verdicts))
    rows.append(row_of(level, split, CORRECTED, corrected))
    for policy, verdicts in failed.items():
        if verdicts:
            rows.append(row_of(level, split, f"adaptive after failed {policy}, observed", verdicts))
    return rows


def as_markdown(rows: list[dict[str, Any]], split: str) -> str:
    """Returns the table of DESIGN.md: success of each policy by level, priced reward in brackets."""
    shown = [row for row in rows if row["split"] == split]
    levels = sorted({row["level"] for row in shown})
    lines = ["| policy |" + "".join(f" L{level} |" for level in levels), "|---|" + "---|" * len(levels)]
    for policy in [*POLICIES, CORRECTED]:
        cells = []
        for level in levels:
            row = next(r for r in shown if (r["level"], r["policy"]) == (level, policy))
            half = (row["high"] - row["low"]) / 2
            cells.append(f" {row['success']:.2f} ± {half:.2f} ({row['priced']:.2f}) |")
        lines.append(f"| {policy} |" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    """Plays, prints the tables and writes them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=500, help="tasks of each level and split")
    parser.add_argument("--companies", type=int, default=200, help="companies of each level, over all splits")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=["train", *SPLITS[2:]])
    parser.add_argument("--levels", nargs="+", type=int, choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--noise", type=float, default=0.2, help="share of random acts of noisy policies")
    parser.add_argument("--seed", type=int, default=0, help="of tasks and policies")
    options = parser.parse_args()
    rows = []
    for level in options.levels:
        tasks = generate_tasks(
            num_companies=options.companies,
            num_train=options.tasks,
            num_val=1,
            num_test=options.tasks,
            level_shares={level: 1.0},
            seed=options.seed,
        )
        for split in options.splits:
            chosen = [task for task in tasks if task.split == split]
            rows += rows_of_split(level, split, chosen, options.seed, options.noise)
    print(f"{'level':>5} {'split':22} {'policy':40} {'tasks':>5}  success {'95 %':>13}  priced  turns")
    for r in rows:
        print(
            f"{r['level']:>5} {r['split']:22} {r['policy']:40} {r['tasks']:>5} {r['success']:>8.3f} "
            f"[{r['low']:.3f} {r['high']:.3f}] {r['priced']:>7.3f} {r['turns']:>6.2f}"
        )
    for split in options.splits:
        print(f"\n{split}\n\n{as_markdown(rows, split)}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        json.dumps({"settings": vars(options), "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"wrote {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
