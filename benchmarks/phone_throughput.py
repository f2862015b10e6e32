"""How many turns a second the phone plays on one core, and how fast the solver audits.

    python -m benchmarks.phone_throughput

Messages of scripted policies are parsed and played again, graded and commented; policies and engines are
not in the time. Then the solver, in states a minute: d* of every state; V* of every step as an audit asks
for it; exact V^pi of a policy that errs one time in five, from states that can still succeed and from
first states.
"""

import math
import sys
import time
from collections.abc import Callable

from benchmarks._phone_plans import policy_value, slipping
from benchmarks._results import Criteria, Row, measured
from benchmarks._run import Asked, Benchmark, main
from env.phone.episode.calls import State
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.offer import solver_value
from env.phone.scripted.policies import play_scripted
from env.phone.solver.solver import fewest_turns
from env.phone.tasks import generate_tasks
from env.phone.world.levels import LEVELS
from env.phone.world.world import World, WorldKey, make_world
from pipeline.types import Task

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
    return solver_value(task, 1, [STYLE.parse(text) for text in texts])


def rows_of_level(level: int, num_tasks: int, repeats: int) -> list[Row]:
    """Returns the median rates of one level, over repeats."""
    tasks = generate_tasks(
        num_companies=60, num_train=num_tasks, num_val=1, num_test=1, level_shares={level: 1.0}, seed=0
    )[:num_tasks]
    logs = [
        (task, [action.text for action in play_scripted(task, policy, 1, noise=0.2)[0]])
        for task in tasks
        for policy in POLICIES
    ]
    turns = sum(len(texts) for _, texts in logs)
    states = states_of(logs)
    worlds = [make_world(WorldKey.from_text(task.ground_truth)) for task in tasks]
    live = [pair for pair in states if 0 < fewest_turns(*pair) < math.inf]
    live = live[:: max(1, len(live) // FEW)][:FEW]
    few, policy = worlds[:FEW], slipping(0.2)
    rates: dict[str, tuple[int, Callable[[], object]]] = {
        "turns a second": (turns, lambda: play(logs)),
        "d* a minute": (60 * len(states), lambda: [fewest_turns(*pair) for pair in states]),
        "V* replayed a minute": (60 * turns, lambda: [audit(*log) for log in logs]),
        "V^pi a minute": (
            60 * len(live),
            lambda: [policy_value(world, policy, state) for world, state in live],
        ),
        "V^pi of starts a minute": (60 * len(few), lambda: [policy_value(world, policy) for world in few]),
    }
    rows = []
    for name, (count, work) in rates.items():
        work()
        middle = sorted(seconds(work) for _ in range(repeats))[repeats // 2]
        rows += measured(
            f"level {level}", {name: round(count / middle)}, count // (60 if "minute" in name else 1)
        )
    return rows


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of all levels."""
    tasks, repeats = asked.options.tasks, asked.options.repeats
    return [row for level in LEVELS for row in rows_of_level(level, tasks, repeats)]


CRITERIA: Criteria = {
    "at least 2,000 turns a second at every level": lambda t: all(
        t(f"level {level}", "turns a second") >= 2000 for level in LEVELS
    ),
    "V* of at least 1,000 states a minute at level 3": lambda t: t("level 3", "V* replayed a minute") >= 1000,
}
BENCHMARK = Benchmark("phone_throughput", __doc__, measure, CRITERIA, options={"tasks": 100, "repeats": 5})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
