import math
from random import Random

import pytest

from benchmarks._phone_plans import policy_value, slipping
from env.phone.episode.calls import State
from env.phone.offer import PHONE
from env.phone.scripted.policies import play_scripted
from env.phone.solver.solver import fewest_turns, optimal_move, play, tool_call
from tests.env.phone.worlds import (
    BILLING,
    FRAUD,
    LEVELS,
    SERVICE,
    STYLE,
    Desk,
    exhaustive,
    first_fatal,
    level_tasks,
    small_world,
    started,
    values_of,
    world_of,
)

ALONE = {"fraud": {"after": ""}}
PAIRS = [("email", "full_name"), ("email", "member_id"), ("full_name", "member_id")]
LONG = ("full_name", "order_number")
CHAIN = {"billing": {"after": "customer_service"}, "fraud": {"after": "billing"}}


WORLDS = {
    "union too long": (
        small_world(level=1, wants=("billing", "fraud"), lines=ALONE | {"billing": {"wants": [LONG]}}),
        math.inf,
    ),
    "alternatives make it fit": (
        small_world(
            level=1, wants=("billing", "fraud"), lines=ALONE | {"billing": {"wants": [LONG, ("email",)]}}
        ),
        3,
    ),
    "two of three": (
        small_world(level=1, lines={"fraud": {"wants": PAIRS, "after": ""}}, lacking=("email",)),
        2,
    ),
    "one referral": (small_world(), 3),
    "a chain": (small_world(level=4, lines=CHAIN), 4),
    "a token": (small_world(level=4, lines={"fraud": {"wants_reference": True}}), 3),
    "a busy line": (small_world(busy={SERVICE}), 4),
    "two busy lines": (small_world(busy={SERVICE, FRAUD, BILLING}), 5),
    "closed and busy": (small_world(closings=((SERVICE, 4),), busy={SERVICE}), 6),
    "the busy line is rung while the other is closed": (
        small_world(closings=((SERVICE, 4),), busy={FRAUD}),
        5,
    ),
    "the open request first": (small_world(wants=("fraud", "billing"), closings=((SERVICE, 4),)), 5),
    "a needed field lacking": (small_world(lacking=("email",)), math.inf),
    "another set will do": (
        small_world(
            lacking=("email",),
            lines={
                "customer_service": {"wants": [("email",), ("full_name",)]},
                "fraud": {"wants": [("email",), ("order_number",)]},
            },
        ),
        3,
    ),
}


WAITING = {"a busy line", "two busy lines", "closed and busy"}


@pytest.mark.parametrize("name", WORLDS)
def test_solver_equals_exhaustive_search_on_small_worlds(name):
    world, expected = WORLDS[name]
    assert fewest_turns(world, State()) == expected
    deepest = 4 if expected == math.inf else expected
    assert exhaustive(world, State(), deepest, every_part=world.level.max_turns == 8) == expected
    plan, state = [], State()
    while (move := optimal_move(world, state)) is not None:
        plan.append(move)
        state = play(world, state, move)
    assert len(plan) == (expected if expected < math.inf else 0)
    assert any(move.kind == "wait" for move in plan) == (name in WAITING)


@pytest.mark.parametrize("level", LEVELS)
def test_solver_equals_exhaustive_search_from_states_of_random_episodes(level):
    deepest, found = (2, set()) if level <= 2 else (3, set())
    for task in level_tasks(level, 30)[: 8 if level <= 2 else 15 // level]:
        for policy in ("random", "prober") if level <= 2 else ("noisy_adaptive", "adaptive"):
            env = started(task, 3)
            for action in play_scripted(task, policy, seed=3, noise=0.3)[0]:
                env.step(action)
                if env.state.form is not None and not env.state.ended:
                    turns = fewest_turns(env.world, env.state)
                    expected = turns if turns <= deepest else math.inf
                    assert exhaustive(env.world, env.state, deepest, every_part=level <= 2) == expected
                    found.add(turns)
    assert {1, math.inf} | ({2, 3} if level > 2 else set()) <= found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("policy", ["random", "noisy_adaptive", "over_collector", "fabricator", "prober"])
def test_the_optimal_value_never_rises_and_its_fall_is_the_fatal_step(level, policy):
    for task in level_tasks(level, 30):
        env = started(task)
        actions, _, verdict = play_scripted(task, policy, seed=4, noise=0.5, env=env)
        values = values_of(env)
        assert verdict.infra_error is None
        assert values[0] == 1.0
        assert values == sorted(values, reverse=True)
        assert values[-1] == float(bool(verdict.success))
        assert PHONE.solver_value(task, 4, actions) == values[:-1]
        fatal = first_fatal(env)
        assert (fatal is None) == bool(verdict.success)
        assert fatal is None or verdict.steps[fatal].status == "wrong"


@pytest.mark.parametrize("level", LEVELS)
def test_a_shortest_plan_succeeds_in_the_environment_in_as_many_messages(level):
    for task in level_tasks(level, 20):
        desk = Desk(task, seed=1)
        codes = desk.play_best()
        verdict = desk.env.verdict()
        assert (codes[-1], verdict.success, verdict.cost) == ("served", True, 0.0)
        assert [step.status for step in verdict.steps] == ["ok"] * task.details["optimal_turns"]


@pytest.mark.parametrize("level", [1, 3, 4, 5])
def test_exact_values_of_a_markov_policy_equal_what_sampling_finds(level):
    policy = slipping(0.25)
    exact, sampled, count = 0.0, 0, 100
    tasks = level_tasks(level, 2)
    for task in tasks:
        exact += policy_value(world_of(task), policy)
        rng = Random(task.task_id)
        for draw in range(count):
            env = started(task, draw)
            while not env.is_over:
                chances = policy(env.world, env.state)
                move = rng.choices(list(chances), list(chances.values()))[0]
                expected = play(env.world, env.state, move)
                env.step(STYLE.action_of(tool_call(env.world, move)))
                assert env.state == expected  # moves are what the environment does
            sampled += bool(env.verdict().success)
    assert policy_value(world_of(tasks[0]), slipping(0.0)) == 1.0
    mean, rate = exact / len(tasks), sampled / (count * len(tasks))
    assert 0.2 < mean < 0.95
    assert abs(mean - rate) < 4 * math.sqrt(mean * (1 - mean) / (count * len(tasks)))
