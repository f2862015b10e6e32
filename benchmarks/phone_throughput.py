"""Measures how many turns a second the phone environment plays on one core, and how fast the solver audits.

    python benchmarks/phone_throughput.py --run data/demo

Recorded messages of scripted policies are parsed and played again, every episode graded and commented;
policies and engines are not part of the time. Then the solver, in states a minute: `d_star` of every state
met, alone; `replayed`, V* of every step as an audit asks for it, the episode played again to get there;
`v_pi`, exact V^pi of a policy that errs one time in five, from states that can still succeed; `v_pi_starts`,
the same from first states. And seconds for plans without the rules, mean and longest.

With a finished run, groups of its rollouts stage are played again by its starting policy on its engine, and
the environment's share of the processor's time is measured, on one thread. Written to
benchmarks/results/phone_throughput.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from env.catalog import ENVIRONMENTS
from env.phone.episode.calls import State
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.scripted.policies import play_scripted
from env.phone.solver.exact import policy_value, slipping
from env.phone.solver.solver import fewest_turns, untold_plan
from env.phone.world.levels import LEVELS
from env.phone.world.tasks import generate_tasks
from env.phone.world.world import World, WorldKey, make_world
from pipeline.types import Task

RESULTS = Path(__file__).parent / "results" / "phone_throughput.json"
POLICIES = ("adaptive", "prober", "noisy_adaptive", "random")
STYLE = CompactStyle()
FEW = 30  # states and worlds whose V^pi is enumerated

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


def audit(task: Task, texts: list[str]) -> list[float]:
    """Returns V* before each message, as the audit of a critic asks for it."""
    return ENVIRONMENTS["phone"].solver_value(task, 1, [STYLE.parse(text) for text in texts])


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
    worlds = [make_world(WorldKey.from_text(task.ground_truth)) for task in tasks[:num_tasks]]
    live = [pair for pair in states if 0 < fewest_turns(*pair) < math.inf]
    live = live[:: max(1, len(live) // FEW)][:FEW]
    few, policy = worlds[:FEW], slipping(0.2)
    rates: dict[str, tuple[int, Callable[[], object]]] = {
        "turns_per_second": (turns, lambda: play(logs)),
        "d_star": (60 * len(states), lambda: [fewest_turns(*pair) for pair in states]),
        "replayed": (60 * turns, lambda: [audit(*log) for log in logs]),
        "v_pi": (60 * len(live), lambda: [policy_value(world, policy, state) for world, state in live]),
        "v_pi_starts": (60 * len(few), lambda: [policy_value(world, policy) for world in few]),
    }
    row: dict[str, Any] = {"level": level, "turns": turns, "states": len(states), "worlds": len(worlds)}
    for name, (count, work) in rates.items():
        work()
        measured = sorted(seconds(work) for _ in range(repeats))
        row[name] = round(count / measured[len(measured) // 2])
    untold = [seconds(lambda world=world: untold_plan(world)) for world in worlds]  # type: ignore[misc]
    row["untold_mean"], row["untold_longest"] = round(sum(untold) / len(untold), 4), round(max(untold), 4)
    return row


class Timed:
    """Stands for an object, and adds the processor seconds that some of its methods take to a clock."""

    def __init__(self, thing: Any, names: Sequence[str], clock: Counter[str]) -> None:
        self._thing, self._names, self._clock = thing, frozenset(names), clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if name not in self._names:
            return value

        def timed(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return value(*args, **options)
            finally:
                self._clock[name] += time.process_time() - start

        return timed


def share_of_rollouts(run: Path, num_groups: int) -> dict[str, Any]:
    """Returns how long groups of a run's rollouts stage take, and how much of that the environment does.

    Args:
        run: folder of a finished run.
        num_groups: groups to play, in the order of the training tasks.
    """
    from env.play.chains import plan_groups
    from pipeline.artifacts.artifact import Artifact
    from pipeline.models.policy import load_policy
    from pipeline.tables import tasks_from
    from stages.rollouts import chains_of
    from stages.settings import Config
    from stages.wiring.build import make_player

    made = Artifact.open(run, "rollouts").manifest
    names = ("rollouts", "sampling", "prompt", "engine")
    sections = {name: {**made["settings"][name], **made["runtime"].get(name, {})} for name in names}
    config = Config.model_validate({**sections, "training": {"threads": 1}})
    if config.engine.kind == "vllm":
        raise SystemExit(
            "engine.kind = vllm: its processes are not counted here; give a run of another engine"
        )
    tasks = [t for t in tasks_from(Artifact.open(run, "tasks").table("tasks")) if t.split == "train"]
    policy = load_policy(Path(Artifact.open(run, "sft").path("policy")))
    player = make_player(config, policy)
    chain = config.rollouts.chain
    groups = plan_groups(
        tasks[:num_groups],
        stage_key="throughput",
        seed=0,
        iteration=0,
        num_attempts=chain.num_attempts,
        draws=chain.draws,
        feedback_free_share=chain.feedback_free_share,
        feedback_free_draws=chain.feedback_free_draws,
    )
    clock: Counter[str] = Counter()
    player = replace(
        player,
        style=Timed(player.style, ("parse", "render_prompt", "render_replies", "attempt_line"), clock),
        make_env=lambda task, make=player.make_env: Timed(  # type: ignore[misc]
            make(task), ("reset", "step", "verdict", "feedback", "state_digest", "close"), clock
        ),
    )
    chains = chains_of(player, groups, chain, seed=0, purpose="throughput", stop_at_success=True)
    start = time.process_time()
    rollouts = player.play(chains.first(), then=chains.after)
    whole = time.process_time() - start
    return {
        "engine": config.engine.kind,
        "groups": len(groups),
        "rollouts": len(rollouts),
        "turns": sum(len(rollout.steps) for rollout in rollouts),
        "seconds": round(whole, 2),
        "environment_seconds": {name: round(spent, 4) for name, spent in sorted(clock.items())},
        "environment_share": round(sum(clock.values()) / whole, 4),
    }


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Returns the table of DESIGN.md."""
    names = ("turns_per_second", "d_star", "replayed", "v_pi", "v_pi_starts")
    heads = ("turns a second", "d*", "V* replayed", "V^pi", "V^pi of starts")
    lines = [
        f"| level | {' | '.join(heads)} | plan without the rules, s |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for row in rows:
        cells = [f"{row[name]:,}" for name in names]
        untold = f"{row['untold_mean']:.4f}, {row['untold_longest']:.4f} at most"
        lines.append(f"| {row['level']} | {' | '.join(cells)} | {untold} |")
    return "\n".join(lines)


def main() -> None:
    """Measures all levels, prints a table and writes it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100, help="tasks of each level")
    parser.add_argument("--repeats", type=int, default=5, help="the median counts")
    parser.add_argument("--run", type=Path, help="folder of a finished run: also play groups of its rollouts")
    parser.add_argument("--groups", type=int, default=200, help="how many of them")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "settings": {"tasks": options.tasks, "repeats": options.repeats, "groups": options.groups},
    }
    if options.run is not None:  # first: as in a stage, no world has been made yet
        results["rollouts"] = share_of_rollouts(options.run, options.groups)
        print(json.dumps(results["rollouts"], indent=1))
    results["rows"] = [measure(level, options.tasks, options.repeats) for level in LEVELS]
    print(as_markdown(results["rows"]))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
