"""Scripted episodes in another prompt style than the one they were played in."""

from __future__ import annotations

from collections.abc import Sequence

from env.chat.compact import CompactStyle
from env.phone.environment import PhoneEnv
from env.phone.tools import CALL, FROM_FORM
from env.protocol import Action, ChatStyle, ToolCall
from pipeline.types import Task

UNKNOWN = "unknown"
"""Said where a call points to a value that nobody gave: no line takes it, whatever the style."""


def in_style(style: ChatStyle, task: Task, seed: int, actions: Sequence[Action]) -> list[Action]:
    """Returns the messages of a scripted episode as a style says them; other styles than compact say values.

    Only compact lines have a word for "the value that the form gave", so elsewhere an agent that knows the
    value has to say it. Calls then differ in that alone, events and states in nothing.

    Args:
        style: to speak in.
        task: that was played.
        seed: of the episode.
        actions: compact messages, each with a call or without one.
    """
    if isinstance(style, CompactStyle):
        return list(actions)
    env = PhoneEnv()
    env.reset(task, seed)
    spoken = []
    for action in actions:
        call = with_values(env, action.calls[0]) if action.calls else None
        spoken.append(style.action_of(call))
        env.step(action)
    return spoken


def with_values(env: PhoneEnv, call: ToolCall) -> ToolCall:
    """Returns a call that says what form and lines have given, or `UNKNOWN`, instead of pointing to it."""
    if call.name != CALL:
        return call
    arguments = call.arguments
    said = env.values_said(arguments["phone_number"], arguments["request"])
    auth_info = {
        field: said.get(field, UNKNOWN) if value is FROM_FORM else value
        for field, value in arguments["auth_info"].items()
    }
    return ToolCall(call.name, {**arguments, "auth_info": auth_info})
