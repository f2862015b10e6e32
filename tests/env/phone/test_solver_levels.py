"""Levels 3 to 5: the solver equals exhaustive search, and exact values equal what sampling finds."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from random import Random

import pytest

from env.phone.episode.calls import State
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.solver.exact import policy_value, slipping
from env.phone.solver.moves import Move, play, tool_call
from env.phone.solver.solver import (
    fewest_turns,
    fewest_turns_untold,
    first_fatal,
    optimal_plan,
    untold_plan,
    values_along,
)
from env.phone.world.rules import AllOf, AnyOf, KOfN
from env.phone.world.tasks import generate_tasks
from env.phone.world.world import WorldKey, make_world
from tests.env.phone.worlds import BILLING, FRAUD, SERVICE, TOKEN, exhaustive, small_world

STYLE = CompactStyle()
LEVELS = (3, 4, 5)


def level_tasks(level, count=30, seed=2):
    tasks = generate_tasks(
        num_companies=40, num_train=count, num_val=1, num_test=1, level_shares={level: 1.0}, seed=seed
    )
    return [task for task in tasks if task.split == "train"]


TASKS = {level: level_tasks(level) for level in LEVELS}


CHAIN = {"billing": {"after": "customer_service"}, "fraud": {"after": "billing"}}
WORLDS = {
    "one referral": (small_world(), 3),
    "a chain": (small_world(level=4, **CHAIN), 4),
    "two requests": (small_world(wants=("fraud", "billing")), 4),
    "a token": (small_world(level=4, fraud={"token": TOKEN}), 3),
    "a busy line": (small_world(busy=frozenset({SERVICE})), 4),
    "two busy lines": (small_world(busy=frozenset({SERVICE, FRAUD, BILLING})), 5),
    "closed for a while": (small_world(closings=((SERVICE, 4),)), 5),
    "closed and busy": (small_world(closings=((SERVICE, 4),), busy=frozenset({SERVICE})), 6),
    "the busy line is rung while the other is closed": (
        small_world(closings=((SERVICE, 4),), busy=frozenset({FRAUD})),
        5,
    ),
    "the open request first": (
        small_world(wants=("fraud", "billing"), closings=((SERVICE, 4),)),
        5,
    ),
    "a needed field lacking": (small_world(lacking=("email",)), math.inf),
    "another set will do": (
        small_world(
            lacking=("email",),
            service={"rule": AnyOf((AllOf(("email",)), AllOf(("full_name",))))},
            fraud={"rule": KOfN(1, ("email", "order_number"))},
        ),
        3,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_solver_equals_exhaustive_search_on_worlds_with_routes_holds_and_hours(name):
    world, expected = WORLDS[name]
    assert fewest_turns(world, State()) == expected
    assert exhaustive(world, State(), 6 if expected < math.inf else 4) == expected
    plan = optimal_plan(world, State())
    assert len(plan) == (expected if expected < math.inf else 0)


@pytest.mark.parametrize("level", LEVELS)
def test_solver_equals_exhaustive_search_from_states_of_random_episodes(level):
    found = set()
    for task in TASKS[level][: 15 // level]:
        for policy in ("noisy_adaptive", "adaptive"):
            env = PhoneEnv()
            actions = play_scripted(task, policy, seed=3, noise=0.3)[0]
            env.reset(task, 3)
            for action in actions:
                env.step(action)
                if env.state.form is not None and not env.state.ended:
                    turns = env.turns_to_success
                    assert exhaustive(env.world, env.state, 3) == (turns if turns <= 3 else math.inf)
                    found.add(turns)
    assert {1, 2, 3, math.inf} <= found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("policy", ["random", "noisy_adaptive", "over_collector", "prober"])
def test_the_optimal_value_never_rises_and_ends_at_success(level, policy):
    for task in TASKS[level]:
        env = PhoneEnv()
        _, _, verdict = play_scripted(task, policy, seed=4, noise=0.5, env=env)
        values = values_along(env.world, env.states)
        assert values[0] == 1.0
        assert values == sorted(values, reverse=True)
        assert values[-1] == float(bool(verdict.success))
        fatal = first_fatal(env.world, env.states)
        assert (fatal is None) == bool(verdict.success)
        if fatal is not None:
            assert verdict.steps[fatal].status == "wrong"


def played(task, *moves):
    """Plays moves of a task, "best" for the next one of a shortest plan; returns the environment."""
    env = PhoneEnv()
    env.reset(task, 0)
    for move in moves:
        if move == "best":
            move = optimal_plan(env.world, env.state)[0]
        action = STYLE.parse(move) if isinstance(move, str) else STYLE.action_of(tool_call(env.world, move))
        env.step(action)
    return env


@pytest.mark.parametrize("level", LEVELS)
def test_first_fatal_is_exact_on_scripted_faults(level):
    for task in TASKS[level][:12]:
        world = make_world(WorldKey.from_text(task.ground_truth))
        turns = fewest_turns(world, State())
        useless = [f"search {world.company.name}"]
        spare = next(field for field in world.profile if field not in world.needed_fields())
        first = world.path(world.requests[0])[0]
        wrong = f"call {first.phone} R1 {spare}=0"
        slack = int(world.level.max_turns - turns)
        cases = [
            (["best", "done"], 1, "none"),
            ([f"form {spare}"], 0, "form"),
        ]
        if not world.closings:  # else the first messages wait for a line to open
            cases.append((useless * (slack + 1), slack, "max_turns"))
        if first.phone not in world.busy and not world.closings and first.screen_first:
            strikes = world.level.strikes_to_lock
            cases.append((["best", *[wrong] * strikes], strikes, "fabricated_auth"))
        for moves, fatal, code in cases:
            env = played(task, *moves)
            assert first_fatal(env.world, env.states) == fatal, moves
            step = env.verdict().steps[fatal]
            assert (step.status, step.code) == ("wrong", code)


@pytest.mark.parametrize("level", [1, 2, *LEVELS])
def test_a_shortest_plan_succeeds_in_the_environment_in_as_many_messages(level):
    for task in level_tasks(level, 20):
        env = PhoneEnv()
        env.reset(task, 1)
        plan = optimal_plan(env.world, env.state)
        assert len(plan) == task.details["optimal_turns"]
        for move in plan:
            result = env.step(STYLE.action_of(tool_call(env.world, move)))
        assert result.terminated
        assert env.verdict().success
        assert env.verdict().cost == 0.0
        assert [step.status for step in env.verdict().steps] == ["ok"] * len(plan)


@pytest.mark.parametrize("level", [1, 2])
def test_where_lines_name_all_they_want_the_plan_without_the_rules_is_the_probers(level):
    for task in level_tasks(level, 20):
        world = make_world(WorldKey.from_text(task.ground_truth))
        messages = len(play_scripted(task, "prober", seed=0)[0])
        assert fewest_turns_untold(world) == messages - 1  # it looks the numbers up first


UNTOLD = {
    "one probe tells all": (small_world(wants=("billing",)), 3),
    "one line's wants cover the other's": (small_world(), 4),
    "each line is asked": (small_world(service={"rule": AllOf(("full_name",))}), 5),
    "a line that names one field at a time": (small_world(fraud={"disclosure": "first"}), 5),
    "peeled to the end": (small_world(service={"disclosure": "vague"}, fraud={"disclosure": "first"}), 5),
    "who says nothing is never understood": (small_world(fraud={"disclosure": "vague"}), math.inf),
    "a busy line is waited for": (small_world(wants=("billing",), busy=frozenset({BILLING})), 4),
    "hours": (small_world(wants=("billing",), closings=((BILLING, 4),)), 6),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_plans_without_the_rules_ask_before_the_one_form(name):
    world, expected = UNTOLD[name]
    assert fewest_turns_untold(world) == expected
    plan = untold_plan(world)
    assert (plan is None) == (expected == math.inf)
    if plan is not None:
        assert [move.kind for move in plan].count("form") == 1
        states = list(accumulate(plan, lambda state, move: play(world, state, move), initial=State()))
        assert len(states[-1].served) == len(world.requests)


@pytest.mark.parametrize("level", [1, 2, *LEVELS])
def test_a_plan_without_the_rules_succeeds_in_the_environment_and_asks_for_what_was_named(level):
    """Every message is played, and the form holds no field that is a guess."""
    planned = 0
    for task in level_tasks(level, 12):
        env = PhoneEnv()
        env.reset(task, 1)
        plan = untold_plan(env.world)
        if plan is None:
            continue
        planned += 1
        told = set()
        for move in plan:
            env.step(STYLE.action_of(tool_call(env.world, move)))
            if move.kind == "form":
                assert move.fields <= told
            if env.outcome is not None:
                said = env.outcome.disclosure
                told |= {*said.missing, *(field for other in said.others for field in other)}
        assert env.verdict().success == (len(plan) <= env.world.level.max_turns)
        assert len(plan) == fewest_turns_untold(env.world)
    assert planned >= 3


def test_a_plan_without_the_rules_goes_on_from_a_form_that_does_and_from_no_other():
    world = small_world()
    right = State(form=frozenset({"email", "member_id"}))
    assert [move.phone for move in untold_plan(world, right)] == [SERVICE, FRAUD]
    assert untold_plan(world, State(form=frozenset({"email"}))) is None


@pytest.mark.parametrize("level", [3, 4])
def test_not_knowing_the_rules_costs_messages_and_never_saves_any(level):
    worlds = [make_world(WorldKey.from_text(task.ground_truth)) for task in TASKS[level][:8]]
    pairs = [(fewest_turns(world, State()), fewest_turns_untold(world)) for world in worlds]
    assert all(known < untold for known, untold in pairs)
    assert any(untold < math.inf for _, untold in pairs)


@pytest.mark.parametrize("level", [1, *LEVELS])
def test_exact_values_of_a_markov_policy_equal_what_sampling_finds(level):
    policy = slipping(0.25)
    exact, sampled, count = 0.0, 0, 150
    tasks = level_tasks(level, 2)
    for task in tasks:
        env = PhoneEnv()
        env.reset(task, 0)
        exact += policy_value(env.world, policy)
        rng = Random(task.task_id)
        for draw in range(count):
            env.reset(task, draw)
            while not env.is_over:
                chances = policy(env.world, env.state)
                move = rng.choices(list(chances), list(chances.values()))[0]
                expected = play(env.world, env.state, move)
                env.step(STYLE.action_of(tool_call(env.world, move)))
                assert env.state == expected  # moves are what the environment does
            sampled += bool(env.verdict().success)
    mean, rate = exact / len(tasks), sampled / (count * len(tasks))
    assert 0.2 < mean < 0.95
    assert abs(mean - rate) < 4 * math.sqrt(mean * (1 - mean) / (count * len(tasks)))


def test_exact_values_have_known_limits_and_obey_bellman():
    for task in TASKS[3][:6]:
        world = make_world(WorldKey.from_text(task.ground_truth))
        assert policy_value(world, slipping(0.0)) == 1.0
        assert policy_value(world, lambda world, state: {Move("search"): 1.0}) == 0.0
        policy = slipping(0.3)
        chances = policy(world, State())
        after = sum(p * policy_value(world, policy, play(world, State(), m)) for m, p in chances.items())
        assert policy_value(world, policy) == pytest.approx(after)
        dead = replace(State(), form=frozenset())
        assert policy_value(world, policy, dead) == 0.0


def test_chances_that_do_not_add_up_are_refused():
    world = small_world()
    with pytest.raises(ValueError, match=r"add up to 0\.5"):
        policy_value(world, lambda world, state: {Move("search"): 0.5})


def test_a_held_call_of_the_plan_is_waited_for():
    world = small_world(busy=frozenset({SERVICE}))
    kinds = [move.kind for move in optimal_plan(world, State())]
    assert kinds == ["form", "call", "wait", "call"]


@pytest.mark.parametrize("level", LEVELS)
def test_every_policy_ends_without_a_failure_of_the_environment(level):
    for task in TASKS[level][:10]:
        for name in POLICIES:
            assert play_scripted(task, name, seed=1, noise=0.3)[2].infra_error is None
