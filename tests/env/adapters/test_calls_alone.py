"""TRL and verl hand over calls alone: what these decide is played and paid by the call, all else refused."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from env.adapters.session import Session, tools_of_row
from env.adapters.trl import tools_class
from env.catalog import offer_of
from env.feedback_tool.calls import NAME
from env.feedback_tool.reward import CALL_PRICE
from env.phone.offer import PHONE
from env.phone.scripted.policies import play_scripted
from env.phone.scripted.spoken import in_style
from env.protocol import Action, ToolCall, replay
from pipeline.errors import ConfigError
from tests.env.adapters.played import ROWS, STYLE, TASKS

ANSWERED = replace(PHONE, graded_by_calls=False)
"""As one's own environment with tools, in which the last message may be an answer."""
BY_MESSAGES = ["math", "code", "short", "math+get_feedback", f"{__name__}:ANSWERED"]


@pytest.mark.parametrize("environment", BY_MESSAGES)
@pytest.mark.parametrize(
    "make", [Session, tools_class, lambda environment: tools_of_row(environment, ROWS[0])]
)
def test_an_environment_that_messages_answer_is_refused_where_calls_alone_are_played(
    make: Callable[[str], Any], environment: str
) -> None:
    """A right answer would have reward 0, as no message without a call arrives."""
    with pytest.raises(ConfigError, match=f"{re.escape(environment)}.* answered by a message .*gymnasium"):
        make(environment)


ASKING = Action("get_feedback", "ok", (ToolCall(NAME, {}),))


@pytest.mark.parametrize(("environment", "asked"), [("phone", 0), ("phone+get_feedback", 1)])
def test_no_message_without_a_call_changes_the_verdict_of_what_calls_are_said_to_decide(
    environment: str, asked: int
) -> None:
    for task, row in zip(TASKS, ROWS, strict=True):
        played = in_style(STYLE, task, 0, play_scripted(task, "random", 0)[0])
        calling = [ASKING] * asked + [action for action in played if action.calls][:2]
        env, session = offer_of(environment).env(), Session(environment)
        session.start(row)
        for action in calling:
            session.call(action.calls[0].name, action.calls[0].arguments)
        results = replay(env, task, 0, [*calling, Action("R1 is served.", "none")])
        assert results[-1].terminated
        assert session.verdict().reward == env.verdict().reward == -CALL_PRICE * asked


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_what_calls_gain_adds_up_to_the_verdict_wherever_the_policy_stops(asked: int) -> None:
    for task, row in zip(TASKS, ROWS, strict=True):
        played = in_style(STYLE, task, 0, play_scripted(task, "oracle", 0)[0])
        session, gained = Session("phone+get_feedback"), list[float]()
        session.start(row)
        for action in [ASKING] * asked + [action for action in played if action.calls]:
            session.call(action.calls[0].name, action.calls[0].arguments)
            gained.append(session.gain())
            assert sum(gained) == pytest.approx(session.verdict().reward)
        assert session.verdict().success
        assert gained[:asked] == pytest.approx([-CALL_PRICE] * asked)
