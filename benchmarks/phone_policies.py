"""Plays the scripted yardstick policies at every level and prints what each achieves.

    python benchmarks/phone_policies.py

Success with its Wilson interval, the mean priced reward, and messages; written to
benchmarks/results/phone_policies.json. In rows of second attempts a success at the first one stands. A
failure is tried again: "its own events" by one that remembers what the calls of the first attempt taught and
reads no feedback, "corrective" by one that also reads form and routes out of the text of corrective feedback.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.world.levels import LEVELS, MAX_PRICE
from env.phone.world.tasks import SPLITS, generate_tasks
from env.protocol import Action
from pipeline.statistics import wilson
from pipeline.types import Task, Verdict

RESULTS = Path(__file__).parent / "results" / "phone_policies.json"
CORRECTED = "adaptive, 2nd attempt, corrective"
REMEMBERED = {
    "adaptive": "adaptive, 2nd attempt, its own events",
    "prior_only": "adaptive after prior_only, 2nd attempt, its own events",
    "over_collector": "adaptive after over_collector, 2nd attempt, its own events",
}
"""Policy of the first attempt -> name of the row of the second."""
ROWS = (*POLICIES, *REMEMBERED.values(), CORRECTED)


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
    second: dict[str, list[Verdict]] = {}
    for policy in POLICIES:
        verdicts = []
        for task in tasks:
            actions, _, verdict = play_scripted(task, policy, seed, noise)
            verdicts.append(verdict)
            if name := REMEMBERED.get(policy):
                again = _second(verdict, task, seed + 1, actions)
                second.setdefault(name, []).append(again)
            if policy == "adaptive":
                again = _second(verdict, task, seed + 1, actions, is_corrected=True)
                second.setdefault(CORRECTED, []).append(again)
        rows.append(row_of(level, split, policy, verdicts))
    return rows + [row_of(level, split, name, second[name]) for name in ROWS if name in second]


def _second(
    first: Verdict, task: Task, seed: int, actions: list[Action], is_corrected: bool = False
) -> Verdict:
    """Returns the first attempt's verdict if it succeeded, else that of an adaptive second one."""
    if first.success:
        return first
    return play_scripted(task, "adaptive", seed, earlier=[actions], is_corrected=is_corrected)[2]


def as_markdown(rows: list[dict[str, Any]], split: str) -> str:
    """Returns the table of DESIGN.md: success of each policy by level, priced reward in brackets."""
    shown = [row for row in rows if row["split"] == split]
    levels = sorted({row["level"] for row in shown})
    lines = ["| policy |" + "".join(f" L{level} |" for level in levels), "|---|" + "---|" * len(levels)]
    for policy in ROWS:
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
    parser.add_argument("--tasks", type=int, default=500, help="training tasks of each level")
    parser.add_argument("--held-out", type=int, default=200, help="tasks of each level and other split")
    parser.add_argument("--companies", type=int, default=200, help="companies of each level, over all splits")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--levels", nargs="+", type=int, choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--noise", type=float, default=0.2, help="share of random acts of noisy policies")
    parser.add_argument("--seed", type=int, default=0, help="of tasks and policies")
    options = parser.parse_args()
    rows = []
    for level in options.levels:
        tasks = generate_tasks(
            num_companies=options.companies,
            num_train=options.tasks,
            num_val=options.held_out,
            num_test=options.held_out,
            level_shares={level: 1.0},
            seed=options.seed,
        )
        for split in options.splits:
            chosen = [task for task in tasks if task.split == split]
            rows += rows_of_split(level, split, chosen, options.seed, options.noise)
    print(f"{'level':>5} {'split':22} {'policy':60} {'tasks':>5}  success {'95 %':>13}  priced  turns")
    for r in rows:
        print(
            f"{r['level']:>5} {r['split']:22} {r['policy']:60} {r['tasks']:>5} {r['success']:>8.3f} "
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
