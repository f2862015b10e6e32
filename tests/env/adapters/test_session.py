"""Calls that come with a name and arguments play the episode that the same calls as text play."""

import inspect
from random import Random
from typing import Any, get_type_hints

import pytest

from env.adapters.session import OVER, Session, text_of, tools_of_row
from env.adapters.trl import PhoneTools, tools_class
from env.chat.calls import checked, schemas_of
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import CALL, TOOLS, WAIT, tools_of
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.scripted.spoken import in_style
from env.phone.world.levels import LEVELS
from pipeline.types import Verdict
from tests.env.adapters.played import ROWS, STYLE, TASKS, without_adapter


@pytest.mark.parametrize("policy", POLICIES)
def test_a_session_plays_what_the_text_plays(policy: str) -> None:
    for seed, (task, row) in enumerate(zip(TASKS, ROWS, strict=True)):
        actions = in_style(STYLE, task, seed, play_scripted(task, policy, seed, noise=0.4)[0])
        calling = [action for action in actions if action.calls]
        session = Session("phone")
        session.start({**row, "seed": seed})
        texts = [text_of(session.call(a.calls[0].name, a.calls[0].arguments).messages) for a in calling]
        played = (session.events, texts, session.state_digest(), session.verdict())
        assert played == without_adapter(task, seed, calling)


def test_calls_that_no_schema_allows_are_events_and_calls_after_the_end_are_nothing() -> None:
    session = Session("phone")
    session.start(ROWS[0])
    for name, arguments, code in (
        ("search", {}, "unknown_tool"),
        (CALL, {"phone_number": "5"}, "bad_args"),
        (CALL, None, "bad_args"),
        (CALL, {"phone_number": "\ud800", "request": "R1", "auth_info": {}}, "bad_args"),
        (CALL, {"phone_number": "5", "request": "R1", "auth_info": {None: "x"}}, "bad_args"),
        (WAIT, {1: "x"}, "bad_args"),
    ):
        assert [event.code for event in session.call(name, arguments).events] == [code]
    while not session.is_over:
        result = session.call("search", {})
    assert result.truncated
    assert session.call("search", {}) == OVER
    assert session.verdict().reward == 0


def test_arguments_of_any_python_kind_never_raise() -> None:
    rng, schemas = Random(0), schemas_of(TOOLS)
    values: list[Any] = [
        None, 1, True, 1.5, float("nan"), 10**50, "x", "\ud800", b"x", [], {}, ("email",), {"email"},
        ["email"], ["email", "email"], [["email"]], [{}], {1: 2}, {(1, 2): "x"}, {None: "y"}, {b"x": "y"},
        {"email": 1}, {"email": None}, {"\ud800": "x"}, object(),
    ]  # fmt: skip
    keys = ["company_name", "fields", "phone_number", "request", "auth_info", "call_id", "zz", 1, None, ()]
    statuses = set()
    for _ in range(3000):
        arguments = rng.choice([
            {rng.choice(keys): rng.choice(values) for _ in range(rng.randint(0, 4))},
            {"phone_number": "5", "request": "R1", "auth_info": rng.choice(values)},
            {"fields": rng.choice(values)},
            {"call_id": rng.choice(values)},
            rng.choice(values),
        ])  # fmt: skip
        statuses.add(checked(schemas, "", [(rng.choice([*schemas, ""]), arguments)]).status)
    assert statuses == {"ok", "unknown_tool", "bad_args"}


def fail(*args: object) -> None:
    raise OSError("gone")


def test_an_episode_that_did_not_start_has_no_reward() -> None:
    session = Session("phone")
    session.start({**ROWS[0], "reward_model": {**ROWS[0]["reward_model"], "ground_truth": "nonsense"}})
    assert session.is_over
    assert session.infra_error == "reset: ValueError"
    result = session.call("search_company", {"company_name": "x"})
    assert (result.messages, result.infra_error) == (OVER.messages, "reset: ValueError")
    assert session.verdict() == Verdict(None, None, infra_error="reset: ValueError")
    session.start(ROWS[0])
    assert (session.is_over, session.infra_error) == (False, None)
    assert session.verdict().reward == 0


def test_a_failing_step_leaves_no_reward_to_later_calls_either(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("phone")
    session.start(ROWS[0])
    monkeypatch.setattr(PhoneEnv, "_step", fail)
    for _ in range(2):
        assert session.call("search_company", {"company_name": "x"}).infra_error == "OSError: gone"
    assert session.verdict() == Verdict(None, None, infra_error="OSError: gone")


def test_a_failing_grader_gives_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = PhoneTools()
    tools.reset(**ROWS[0])
    monkeypatch.setattr(PhoneEnv, "verdict", fail)
    assert tools._session.verdict() == Verdict(None, None, infra_error="verdict: OSError")
    assert tools.get_reward() is None


def test_methods_for_trl_are_typed_and_documented_by_the_schemas() -> None:
    methods = {name for name in vars(PhoneTools) if not name.startswith("_")} - {"environment"}
    assert methods == {tool["function"]["name"] for tool in TOOLS}
    for tool in (tool["function"] for tool in TOOLS):
        method = getattr(PhoneTools(), tool["name"])
        signature = inspect.signature(method)
        assert list(signature.parameters) == list(tool["parameters"]["properties"])
        assert set(signature.parameters) < set(get_type_hints(method))
        assert inspect.getdoc(method).startswith(tool["description"])
        for name, parameter in signature.parameters.items():
            assert (parameter.default is parameter.empty) == (name in tool["parameters"]["required"])


def test_a_class_for_trl_may_have_the_tools_of_one_level() -> None:
    for task, row in zip(TASKS, ROWS, strict=True):
        tools = tools_of_row("phone", row)
        assert tools == tools_of(LEVELS[task.level])
        some = tools_class("phone", tools, "SomeTools")
        assert some.__name__ == "SomeTools"
        assert {name for name in vars(some) if not name.startswith("_")} - {"environment"} == {
            tool["function"]["name"] for tool in tools
        }


def test_wrong_arguments_reach_the_environment_from_trl_too() -> None:
    tools = PhoneTools()
    tools.reset(**ROWS[0])
    tools.search_company(name="x", self=3)
    assert [event.code for event in tools._session.events] == ["bad_args"]
    assert tools.get_reward() == 0
    tools.reset(**ROWS[1])
    assert tools._session.events == []
