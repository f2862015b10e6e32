"""A prompt of the full style translated to the compact one: the scripted agent reads only that."""

from __future__ import annotations

import re

from env.chat.full import START_TOKEN, STOP_TOKEN, FullStyle
from env.phone.episode.compact import CompactStyle
from pipeline.types import Message

_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


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
