"""Scripted episodes as another agent would say them: in another prompt style, or thinking before it calls."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from env.chat.full import START_TOKEN, FullStyle
from env.chat.style import STOP_TOKEN, ChatStyle
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import CALL, FROM_FORM
from env.protocol import Action, ToolCall
from pipeline.types import Message, Task

UNKNOWN = "unknown"
"""Said where a call points to a value that nobody gave: no line takes it, whatever the style."""

_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def in_style(
    style: ChatStyle, task: Task, seed: int, actions: Sequence[Action], thoughts: bool = False
) -> list[Action]:
    """Returns the compact messages of a scripted episode as a style says them.

    Only compact lines have a word for "the value that the form gave", so elsewhere an agent that knows the
    value has to say it. Calls then differ in that alone, events and states in nothing.

    With `thoughts`, each call of a listed line follows a thought: what for, and whom. An agent that has said
    the line's name has decided before it dials, and only copies the number after.
    """
    env = PhoneEnv()
    env.reset(task, seed)
    lines = {line.phone: line.name for line in env.world.company.departments}
    errands = {request.request_id: request.errand for request in env.world.requests}
    spoken = []
    for action in actions:
        call = action.calls[0] if action.calls else None
        phone, request = "", ""
        if call is not None and call.name == CALL:
            phone, request = call.arguments["phone_number"], call.arguments["request"]
            call = with_values(call, env.values_said(phone, request))
        said = action if isinstance(style, CompactStyle) else style.action_of(call)
        if thoughts and phone in lines and request in errands:
            said = style.with_thought(said, f"{request} {errands[request]}: {lines[phone]}")
        spoken.append(said)
        env.step(action)
    return spoken


def with_values(call: ToolCall, said: Mapping[str, str]) -> ToolCall:
    """Returns a call of a line that says what was given, or `UNKNOWN`, instead of pointing to it."""
    auth_info = {
        field: said.get(field, UNKNOWN) if value is FROM_FORM else value
        for field, value in call.arguments["auth_info"].items()
    }
    return replace(call, arguments=call.arguments | {"auth_info": auth_info})


def to_compact(prompt_text: str, full: FullStyle, compact: CompactStyle) -> str:
    """Returns the compact prompt that says what a full one does; the tools, which it knows, are left out."""
    messages: list[Message] = []
    for part in prompt_text.split(START_TOKEN)[1:]:
        role, _, content = part.partition("\n")
        content, is_ended, _ = content.partition(STOP_TOKEN)
        if not is_ended:
            break  # the cue
        if role == "assistant":
            content = content.removeprefix(full.opening)
            action = full.parse(content)
            told = compact.format_call(action.calls[0]) if action.calls else content
            messages.append({"role": role, "content": told})
        elif responses := _RESPONSE.findall(content):
            messages += [{"role": "tool", "content": response} for response in responses]
        elif role == "user":
            messages.append({"role": role, "content": content})
    return compact.render_prompt(messages)
