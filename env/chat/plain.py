"""The plain style: marked lines without tools, for environments that are answered in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import jinja2

from env.chat.neutral import REPLACEMENTS, added_replacements, one_line
from env.protocol import Action, ToolCall, Tools
from pipeline.ids import digest
from pipeline.types import Message

STOP_TOKEN = "<|im_end|>"
MAX_ATTEMPT_CHARACTERS = 300
_SOURCE = """
{%- macro safe(text) -%}
{%- set found = namespace(text=text) -%}
{%- for mark, broken in marks -%}{%- set found.text = found.text | replace(mark, broken) -%}{%- endfor -%}
{{- found.text -}}
{%- endmacro -%}
{%- for message in messages -%}
{{- {"system": "S: ", "user": "U: ", "tool": "T: ", "assistant": "A: "}[message.role] -}}
{%- if message.role == "assistant" -%}{{- message.content -}}
{%- else -%}{{- safe(message.content) -}}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "A: " -}}{%- endif -%}
"""


class PlainStyle:
    """Renders messages as `U: A: T:` lines; every message of the policy is an answer, never a call.

    Args:
        added: the tokenizer's added tokens, which no text from outside the policy may hold.
    """

    name = "plain"
    stop_token = STOP_TOKEN
    special_tokens: tuple[str, ...] = (STOP_TOKEN,)

    def __init__(self, added: Sequence[str] = ()) -> None:
        marks = json.dumps((*REPLACEMENTS, *added_replacements(added)), ensure_ascii=False)
        self.template = f"{{%- set marks = {marks} -%}}{_SOURCE}"
        self.digest = digest(self.name, _SOURCE, REPLACEMENTS)
        self._render = jinja2.Environment(autoescape=False).from_string(self.template)

    def render_prompt(
        self, messages: Sequence[Message], previous_attempts: Sequence[str] = (), tools: Tools | None = None
    ) -> str:
        """Returns the text up to the first sampled token; earlier attempts end the first user message."""
        told = "".join(f"\n{attempt}" for attempt in previous_attempts)
        first = next((m for m in messages if m["role"] == "user"), None)
        shown = [{**m, "content": m["content"] + told} if m is first else m for m in messages]
        return self._render.render(messages=shown, add_generation_prompt=True)

    def render_replies(self, messages: Sequence[Message]) -> str:
        """Returns the text after a sampled message (its stop token included): replies, then the next cue."""
        return "\n" + self._render.render(messages=messages, add_generation_prompt=True)

    def parse(self, text: str) -> Action:
        """Returns the answer; every text is one."""
        return Action(text.removesuffix(STOP_TOKEN), "none")

    def action_of(self, call: ToolCall | None) -> Action:
        """Returns an empty answer. Raises ValueError for a call: this style has none."""
        if call is not None:
            raise ValueError(f"the plain style has no tools, so it cannot call {call.name}")
        return Action("", "none")

    def with_thought(self, action: Action, thought: str) -> Action:
        """Returns the answer with a line of thought before it."""
        return replace(action, text=f"{thought}\n{action.text}")

    def attempt_line(self, actions: Sequence[Action], feedback: str) -> str:
        """Returns one earlier attempt as an element of `previous_attempts`: answers, then the feedback."""
        texts = "; ".join(one_line(action.text, MAX_ATTEMPT_CHARACTERS) for action in actions)
        return f"{texts} => {one_line(feedback, 600)}"

    def assistant_message(self, action: Action, turn: int) -> Message:
        """Returns the message in OpenAI form; its content is the text as sampled."""
        return {"role": "assistant", "content": action.text}
