"""Every adapter plays what the environment itself plays, and takes no failure for a reward."""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, get_type_hints

import pytest
from transformers.utils import get_json_schema

from env.adapters.session import OVER, Session, text_of, tools_of_row
from env.adapters.trl import PhoneTools, tools_class
from env.chat.calls import checked, schemas_of
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import CALL, TOOLS, WAIT, tools_of
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.scripted.spoken import in_style
from env.phone.world.levels import LEVELS
from env.protocol import Action, StepResult, ToolCall, replay
from pipeline.types import Verdict
from tests.env.adapters.played import ROWS, STYLE, TASKS, Heard, by_session


def by_trl(row: dict[str, Any], actions: Sequence[Action]) -> Heard:
    tools = PhoneTools()
    tools.reset(**row)
    calls = [action.calls[0] for action in actions if action.calls]
    return [getattr(tools, call.name)(**call.arguments) for call in calls], tools.get_reward()


def by_verl(row: dict[str, Any], actions: Sequence[Action]) -> Heard:
    """In verl's plain contract: one instance, known by its id, for all calls of a request."""
    pytest.importorskip("verl", reason="make setup-adapters installs it")
    from env.adapters.verl import EnvironmentTool

    async def play() -> Heard:
        texts, rewards = [], []
        for call in (action.calls[0] for action in actions if action.calls):
            tool = EnvironmentTool({"type": "native", "environment": "phone", "tool": call.name})
            await tool.create("request", create_kwargs={"row": row})
            response, reward, _ = await tool.execute("request", call.arguments)
            texts.append(response.text)
            rewards.append(reward)
        score = await tool.calc_reward("request")
        await tool.release("request")
        assert EnvironmentTool._sessions == {}
        assert math.isnan(sum(rewards)) if math.isnan(score) else sum(rewards) == score
        return texts, None if math.isnan(score) else score

    return asyncio.run(play())


def by_gymnasium(row: dict[str, Any], actions: Sequence[Action]) -> Heard:
    pytest.importorskip("gymnasium", reason="make setup-adapters installs it")
    from env.adapters.gymnasium import TextEnv

    [task] = [task for task in TASKS if task.task_id == row["task_id"]]
    env, texts, rewards = TextEnv(TASKS), [], []
    env.reset(seed=row["seed"], options={"task": task})
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action.text)
        assert env.observation_space.contains(observation)
        assert ("verdict" in info or "infra_error" in info) == (terminated or truncated)
        texts += [observation] if info["messages"] else []
        rewards.append(reward)
        if terminated or truncated:
            break
    assert math.isnan(rewards[-1]) == ("infra_error" in info)
    assert not (terminated and "infra_error" in info)
    return texts, None if math.isnan(rewards[-1]) else sum(rewards)


CALLING = [
    pytest.param(by_session, id="session"),
    pytest.param(by_trl, id="trl"),
    pytest.param(by_verl, id="verl", marks=[pytest.mark.adapters, pytest.mark.filterwarnings("default")]),
]
ALL = [*CALLING, pytest.param(by_gymnasium, id="gymnasium", marks=pytest.mark.adapters)]


@pytest.mark.parametrize("play", ALL)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_episode_is_the_one_that_is_played_without_an_adapter(
    play: Callable[..., Heard], policy: str
) -> None:
    for seed, (task, row) in enumerate(zip(TASKS, ROWS, strict=True)):
        actions = in_style(STYLE, task, seed, play_scripted(task, policy, seed, noise=0.4)[0])
        if calling := [action for action in actions if action.calls]:  # with which verl's episodes start
            env = PhoneEnv()
            results = replay(env, task, seed, calling)
            texts = [message["content"] for result in results for message in result.messages]
            assert play({**row, "seed": seed}, actions) == (texts, env.verdict().reward)


SEARCHING = STYLE.action_of(ToolCall("search_company", {"company_name": "x"}))


@pytest.mark.parametrize("play", ALL)
@pytest.mark.parametrize("where", ["_step", "step", "verdict"])
def test_what_the_environment_fails_to_play_or_grade_has_no_reward(
    monkeypatch: pytest.MonkeyPatch, play: Callable[..., Heard], where: str
) -> None:
    def fail(*args: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(PhoneEnv, where, fail)
    _, reward = play({**ROWS[0], "seed": 0}, [SEARCHING, SEARCHING, STYLE.action_of(None)])
    assert reward is None


@pytest.mark.parametrize("play", ALL)
@pytest.mark.parametrize(
    ("where", "given"),
    [
        ("step", StepResult(({"role": "tool", "content": None},))),
        ("step", None),
        ("verdict", Verdict(5.0, True)),
        ("verdict", Verdict(0.0, False, infra_error="timeout")),
    ],
)
def test_what_an_environment_may_not_give_back_has_no_reward(
    monkeypatch: pytest.MonkeyPatch, play: Callable[..., Heard], where: str, given: Any
) -> None:
    monkeypatch.setattr(PhoneEnv, where, lambda *args: given)
    _, reward = play({**ROWS[0], "seed": 0}, [SEARCHING, SEARCHING, STYLE.action_of(None)])
    assert reward is None


@pytest.mark.parametrize("play", CALLING)
def test_an_episode_that_did_not_start_is_over_and_has_no_reward(play: Callable[..., Heard]) -> None:
    bad = {**ROWS[0], "reward_model": {**ROWS[0]["reward_model"], "ground_truth": "nonsense"}}
    assert play(bad, [SEARCHING] * 2) == ([text_of(OVER.messages)] * 2, None)


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


def methods_of(tools: type) -> set[str]:
    return {name for name in vars(tools) if not name.startswith("_")} - {"environment"}


def test_methods_for_trl_are_typed_and_documented_by_the_schemas() -> None:
    assert methods_of(PhoneTools) == {tool["function"]["name"] for tool in TOOLS}
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
        assert methods_of(some) == {tool["function"]["name"] for tool in tools}


def test_what_a_schema_may_leave_out_trl_need_not_have() -> None:
    """Whatever `schemas_of` takes becomes a method whose schema TRL reads."""
    plain: list[dict[str, Any]] = [
        {"type": "object", "additionalProperties": False},
        {
            "type": "object",
            "properties": {
                "where": {"type": "string"},
                "how": {"type": "string", "description": "by which way"},
                "when": {"type": ["array", "null"], "items": {"type": "integer"}},
                "what": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}},
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
    ]
    for schema in plain:
        tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
        assert list(schemas_of([tool])) == ["look"]
        method = tools_class("phone", [tool], "Looking")().look
        read = get_json_schema(method)["function"]["parameters"]
        assert list(read["properties"]) == list(schema.get("properties", {}))
        assert "required" not in read
        for name, part in schema.get("properties", {}).items():
            assert part.get("description", name) == read["properties"][name]["description"]


def test_wrong_arguments_reach_the_environment_from_trl_too() -> None:
    tools = PhoneTools()
    tools.reset(**ROWS[0])
    assert "self is not known" in tools.search_company(company_name="x", self=3)
    assert tools.get_reward() == 0
