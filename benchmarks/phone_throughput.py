"""Measures how many turns a second the phone environment plays on one core, and how fast the solver audits.

    python benchmarks/phone_throughput.py

Recorded messages of scripted policies are parsed and played again, every episode graded and commented; the
solver gives d* of every state met. Policies and engines are not part of the time. Written to
benchmarks/results/phone_throughput.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from env.chat.compact import CompactStyle
from env.phone.calls import State
from env.phone.environment import PhoneEnv
from env.phone.levels import LEVELS
from env.phone.policies import play_scripted
from env.phone.solver import fewest_turns, fewest_turns_untold
from env.phone.tasks import generate_tasks
from env.phone.world import World
from pipeline.types import Task

RESULTS = Path(__file__).parent / "results" / "phone_throughput.json"
POLICIES = ("adaptive", "prober", "noisy_adaptive", "random")
STYLE = CompactStyle()

Log = tuple[Task, list[str]]


def seconds(work: Callable[[], object]) -> float:
    """Returns the processor seconds that one call takes: other work on the machine does not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


def play(logs: list[Log]) -> None:
    """Plays every log: parse, step, verdict, feedback."""
    env = PhoneEnv()
    for task, texts in logs:
        env.reset(task, 1)
        for text in texts:
            env.step(STYLE.parse(text))
        env.verdict()
        env.feedback()


def states_of(logs: list[Log]) -> list[tuple[World, State]]:
    """Returns every state that the logs pass through, with its world."""
    found = []
    env = PhoneEnv()
    for task, texts in logs:
        env.reset(task, 1)
        for text in texts:
            env.step(STYLE.parse(text))
        found += [(env.world, state) for state in env.states]
    return found


def measure(level: int, num_tasks: int, repeats: int) -> dict[str, Any]:
    """Returns the median rates of one level."""
    tasks = generate_tasks(
        num_companies=60, num_train=num_tasks, num_val=1, num_test=1, level_shares={level: 1.0}, seed=0
    )
    logs = [
        (task, [action.text for action in play_scripted(task, policy, 1, noise=0.2)[0]])
        for task in tasks[:num_tasks]
        for policy in POLICIES
    ]
    turns = sum(len(texts) for _, texts in logs)
    states = states_of(logs)
    worlds = [
        states[0][0],
        *(world for (before, _), (world, _) in pairwise(states) if world is not before),
    ]
    rates = {
        "turns_per_second": (turns, lambda: play(logs)),
        "states_per_minute": (60 * len(states), lambda: [fewest_turns(*pair) for pair in states]),
    }
    row: dict[str, Any] = {"level": level, "turns": turns, "states": len(states)}
    for name, (count, work) in rates.items():
        work()
        measured = sorted(seconds(work) for _ in range(repeats))
        row[name] = round(count / measured[len(measured) // 2])
    few = worlds[:: max(1, len(worlds) // 10)][:10]
    row["untold_seconds"] = round(
        seconds(lambda: [fewest_turns_untold(world) for world in few]) / len(few), 4
    )
    return row


def main() -> None:
    """Measures all levels, prints a table and writes it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100, help="tasks of each level")
    parser.add_argument("--repeats", type=int, default=5, help="the median counts")
    options = parser.parse_args()
    rows = [measure(level, options.tasks, options.repeats) for level in LEVELS]
    print("level  turns/s  audited states/min  s per plan without the rules")
    for row in rows:
        print(
            f"{row['level']:>5} {row['turns_per_second']:>8} {row['states_per_minute']:>19} "
            f"{row['untold_seconds']:>29.4f}"
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        json.dumps({"settings": vars(options), "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"wrote {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
