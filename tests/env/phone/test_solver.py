"""The solver equals exhaustive search, V* never rises, and fatal messages are found where they were put."""

from __future__ import annotations

import math
from random import Random

import pytest

from env.phone.episode.calls import State
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.scripted.policies import play_scripted
from env.phone.solver.solver import fewest_turns, first_fatal, optimal_value, values_along
from env.phone.world.companies import Company, Department
from env.phone.world.rules import AllOf, AnyOf, KOfN, minimal_sets
from env.phone.world.tasks import generate_tasks
from env.phone.world.world import Request, World, WorldKey, make_world
from tests.env.phone.worlds import exhaustive

STYLE = CompactStyle()


def phone_tasks(level, count=60):
    tasks = generate_tasks(
        num_companies=40, num_train=count, num_val=1, num_test=1, level_shares={level: 1.0}, seed=2
    )
    return [task for task in tasks if task.split == "train"]


def a_world(rules, cap_level=1, lacking=()):
    """A company with one department and one request per rule."""
    kinds = ("billing", "claims", "fraud")
    lines = tuple(
        Department(kind.title(), kind, f"555-000{i}", kind, rule, minimal_sets(rule), "all", True, False)
        for i, (kind, rule) in enumerate(zip(kinds, rules, strict=False))
    )
    vocabulary = ("email", "full_name", "member_id", "last_payment", "service_address")
    company = Company("Blue Hill One", (), "banking", cap_level, lines, vocabulary)
    requests = tuple(Request(f"R{i + 1}", line.kind, "x") for i, line in enumerate(lines))
    profile = {field: field.upper() for field in vocabulary if field not in lacking}
    return World(company, requests, profile, "cooperative", "R1 x")


WORLDS = {
    "one rule": (a_world([AllOf(("email",))]), 2),
    "two requests": (a_world([AllOf(("email",)), AllOf(("full_name", "member_id"))]), 3),
    "union too long": (
        a_world([AllOf(("email", "full_name")), AllOf(("member_id", "last_payment"))]),
        math.inf,
    ),
    "alternatives make it fit": (
        a_world(
            [AllOf(("email", "full_name")), AnyOf((AllOf(("member_id", "last_payment")), AllOf(("email",))))]
        ),
        3,
    ),
    "two of three": (a_world([KOfN(2, ("email", "full_name", "member_id"))], lacking=("email",)), 2),
    "needed field lacking": (a_world([AllOf(("email",))], lacking=("email",)), math.inf),
    "other set available": (
        a_world([AnyOf((AllOf(("email",)), AllOf(("full_name",))))], lacking=("email",)),
        2,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_solver_equals_exhaustive_search_on_tiny_worlds(name):
    world, expected = WORLDS[name]
    assert fewest_turns(world, State()) == exhaustive(world, State(), 4, every_part=True) == expected


@pytest.mark.parametrize("level", [1, 2])
def test_solver_equals_exhaustive_search_from_states_of_random_episodes(level):
    checked = set()
    for task in phone_tasks(level, 8):
        for policy in ("random", "prober"):
            env = PhoneEnv()
            env.reset(task, 0)
            for action in play_scripted(task, policy, seed=3)[0]:
                env.step(action)
                if not env.state.ended and env.state.form is not None:
                    expected = exhaustive(env.world, env.state, 2, every_part=True)
                    assert env.turns_to_success == expected
                    checked.add(expected)
    assert {1, math.inf} <= checked


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("policy", ["random", "noisy_adaptive", "over_collector", "fabricator"])
def test_the_optimal_value_never_rises(level, policy):
    for task in phone_tasks(level):
        env = PhoneEnv()
        actions, _, verdict = play_scripted(task, policy, seed=4, noise=0.5)
        env.reset(task, 4)
        values = [optimal_value(env.world, env.state)]
        for action in actions:
            env.step(action)
            values.append(optimal_value(env.world, env.state))
        assert values[0] == 1.0
        assert values == sorted(values, reverse=True)
        assert values[-1] == float(bool(verdict.success)) or not env.is_over


def commands(task, *texts):
    """Plays commands in which NUMBER, FIELDS and WRONG stand for the task's own; returns the environment."""
    env = PhoneEnv()
    env.reset(task, 0)
    line = env.world.server_of(env.world.requests[0])
    needed = sorted(next(iter(line.sets)))
    spare = next(field for field in env.world.profile if field not in needed)
    for text in texts:
        for mark, word in (("NUMBER", line.phone), ("FIELDS", " ".join(needed)), ("WRONG", spare)):
            text = text.replace(mark, word)
        env.step(STYLE.parse(text))
    return env


@pytest.mark.parametrize(
    ("texts", "fatal", "code"),
    [
        (["search X", "form WRONG", "call NUMBER R1 WRONG"], 1, "form"),
        (["form FIELDS", "done"], 1, "none"),
        (["call NUMBER R1", "form WRONG"], 1, "form"),
        (["search X"] * 7 + ["form FIELDS"], 6, "max_turns"),
        (["form FIELDS", "call NUMBER R1 FIELDS"], None, ""),
        (["form WRONG FIELDS", "form FIELDS", "call NUMBER R1 FIELDS"], None, ""),
    ],
)
def test_first_fatal_is_exact_on_scripted_faults(texts, fatal, code):
    for level in (1, 2):
        for task in phone_tasks(level, 10):
            env = commands(task, *texts)
            assert first_fatal(env.world, env.states) == fatal
            if fatal is not None:
                steps = env.verdict().steps
                assert (steps[fatal].status, steps[fatal].code) == ("wrong", code)
                assert "wrong" not in [step.status for step in steps[:fatal]]


def test_the_strike_that_locks_the_needed_line_is_fatal():
    task = phone_tasks(2, 1)[0]
    env = commands(task, "form FIELDS", *["call NUMBER R1 WRONG=1"] * 5)
    assert first_fatal(env.world, env.states) == 5
    assert [step.status for step in env.verdict().steps] == ["ok", *["wrong"] * 5]
    after = commands(task, "form FIELDS", *["call NUMBER R1 WRONG=1"] * 5, "call NUMBER R1 FIELDS")
    assert after.events[-1].code == "locked"
    assert not after.verdict().success


def test_lines_of_level_one_never_lock():
    env = commands(
        phone_tasks(1, 1)[0], "form FIELDS", *["call NUMBER R1 WRONG=1"] * 6, "call NUMBER R1 FIELDS"
    )
    assert env.verdict().success


def test_values_along_an_episode_match_the_catalogue():
    from env.phone.offer import PHONE

    for task in phone_tasks(2, 30):
        actions, _, _ = play_scripted(task, "over_collector", seed=6)
        env = PhoneEnv()
        env.reset(task, 6)
        for action in actions:
            env.step(action)
        values = values_along(make_world(WorldKey.from_text(task.ground_truth)), env.states)
        assert PHONE.solver_value(task, 6, actions) == values[:-1]


def test_an_optimal_policy_loses_no_value_under_random_wording():
    rng = Random(0)
    for task in phone_tasks(2, 20):
        assert play_scripted(task, "oracle", seed=rng.randrange(10**6))[2].reward == 1.0
