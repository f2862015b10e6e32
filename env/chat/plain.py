"""The plain style: marked lines without tools, for environments that are answered in words."""

import json
from collections.abc import Sequence

from env.chat.neutral import REPLACEMENTS, added_replacements
from env.chat.style import FROM_OPENAI, STOP_TOKEN, ChatStyle
from env.protocol import Action, ToolCall, Tools
from pipeline.ids import digest
from pipeline.types import Message

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


class PlainStyle(ChatStyle):
    """Renders messages as `U: A: T:` lines; every message of the policy is an answer, never a call.

    Args:
        added: the tokenizer's added tokens, which no text from outside the policy may hold.
    """

    name = "plain"

    def __init__(self, added: Sequence[str] = ()) -> None:
        marks = json.dumps((*REPLACEMENTS, *added_replacements(added)), ensure_ascii=False)
        template = f"{FROM_OPENAI}{{%- set marks = {marks} -%}}{_SOURCE}"
        super().__init__(template, digest(self.name, _SOURCE, REPLACEMENTS))

    def render_prompt(
        self, messages: Sequence[Message], previous_attempts: Sequence[str] = (), tools: Tools | None = None
    ) -> str:
        """Returns the text up to the first sampled token; earlier attempts end the first user message."""
        told = "".join(f"\n{attempt}" for attempt in previous_attempts)
        first = next((m for m in messages if m["role"] == "user"), None)
        shown = [{**m, "content": m["content"] + told} if m is first else m for m in messages]
        return super().render_prompt(shown)

    def parse(self, text: str) -> Action:
        """Returns the answer; every text is one."""
        return Action(text.removesuffix(STOP_TOKEN), "none")

    def action_of(self, call: ToolCall | None) -> Action:
        """Returns an empty answer. Raises ValueError for a call: this style has none."""
        if call is not None:
            raise ValueError(f"the plain style has no tools, so it cannot call {call.name}")
        return Action("", "none")

    def told(self, action: Action) -> str:
        """Returns the answer."""
        return action.text
