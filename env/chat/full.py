"""The full style: the tool-call format of Qwen3 and Hermes, for chat models of any size.

Where no `<think>` block is, `full.jinja` writes what Qwen3's own template does. Unlike that one it leaves
earlier blocks where they were sampled, and ends a turn of tool responses only when something else follows:
so each rendering is a prefix of the next. Without thinking every assistant's message is opened by the empty
block that Qwen3's template writes for `enable_thinking=False`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from env.chat.calls import checked, schemas_of
from env.chat.neutral import REPLACEMENTS, added_replacements
from env.chat.style import STOP_TOKEN, ChatStyle
from env.protocol import Action, ToolCall, Tools
from pipeline.ids import digest

START_TOKEN = "<|im_start|>"

MAX_CALLS = 1
"""Of a message: environments play one."""
MAX_ANSWER_CHARACTERS = 8000
"""Of what follows the last `</think>`."""
GRAMMAR_VERSION = 3  # 2: a prompt lists the tools of its level. 3: no thought or value of a bad call is told
ENDING = "Done."
THOUGHT, UNREADABLE = "thought to the end", "a call that nobody could read"
"""What later attempts hear of thinking that never ended, and of a call without the name of a tool."""

_OPEN, _CLOSE, _THINK, _END_THINK = "<tool_call>", "</tool_call>", "<think>", "</think>"
_NAME = re.compile(r'"name"\s*:\s*"(\w+)"')


class FullStyle(ChatStyle):
    """Renders ChatML with tools as JSON lines, reads calls as JSON in `<tool_call>`.

    Args:
        tools: OpenAI schemas, as an environment's spec has them.
        added: the tokenizer's added tokens, which no text from outside the policy may hold.
        thinking: whether the policy may think before it answers, as Qwen3 does unless its prompt closes an
            empty `<think>` block.

    Attributes:
        opening: what the prompt itself writes of an assistant's message.
    """

    name = "full"
    is_chat_template = True
    special_tokens = (START_TOKEN, STOP_TOKEN)

    def __init__(self, tools: Tools, added: Sequence[str] = (), thinking: bool = True) -> None:
        source = Path(__file__).with_name("full.jinja").read_text(encoding="utf-8").rstrip("\n")
        marks = (*REPLACEMENTS, *added_replacements(added))
        self.tools, self.thinks = tuple(tools), thinking
        self.opening = "" if thinking else f"{_THINK}\n\n{_END_THINK}\n\n"
        self.serve_options = ("--enable-auto-tool-choice", "--tool-call-parser hermes")
        if thinking:
            self.serve_options += ("--reasoning-parser qwen3",)
        self._schemas = schemas_of(self.tools)
        given = f"set marks, opening = {json.dumps([marks, self.opening], ensure_ascii=False)}"
        super().__init__(
            f"{{%- {given} -%}}\n{source}",
            # Not of the added tokens: they are the tokenizer's, which has a digest of its own.
            digest(self.name, GRAMMAR_VERSION, source, REPLACEMENTS, self.tools, MAX_CALLS, self.opening),
        )

    def parse(self, text: str) -> Action:
        """Returns the action of one assistant message; total and linear in its length.

        It reads what follows the last `</think>`. A message without a call, or one whose thinking never
        ends, is `none`; a call that never ends, or is no JSON object of name and arguments, `malformed_json`.
        """
        body = text.removesuffix(STOP_TOKEN)
        answer = body.rpartition(_END_THINK)[2]
        if _THINK in answer:
            return Action(body, "none")
        if len(answer) > MAX_ANSWER_CHARACTERS:
            return Action(body, "bad_args", problem=f"more than {MAX_ANSWER_CHARACTERS} characters")
        before, *parts = answer.split(_OPEN)
        if len(parts) > MAX_CALLS:
            return Action(body, "too_many", problem="one call per message")
        try:
            if _CLOSE in before:
                raise _UnreadableError("malformed_json", f"{_CLOSE} without {_OPEN}")
            calls = [_read_call(part) for part in parts]
        except _UnreadableError as error:
            status, problem = error.args
            return Action(body, status, problem=problem)
        return checked(self._schemas, body, calls) if calls else Action(body, "none")

    def format_call(self, call: ToolCall) -> str:
        """Returns the text that `parse` reads as this call. Raises ValueError if the tool is unknown."""
        if call.name not in self._schemas:
            raise ValueError(f"tool {call.name!r} is not offered; known: {', '.join(self._schemas)}")
        return f'{_OPEN}\n{{"name": {_json(call.name)}, "arguments": {_json(call.arguments)}}}\n{_CLOSE}'

    def action_of(self, call: ToolCall | None) -> Action:
        """Returns the action with the text of this call; None ends the episode in a word."""
        return Action(ENDING, "none") if call is None else Action(self.format_call(call), "ok", (call,))

    def with_thought(self, action: Action, thought: str) -> Action:
        """Returns the action with thinking before it, in the form that Qwen3 writes."""
        return replace(action, text=f"{_THINK}\n{thought}\n{_END_THINK}\n\n{action.text}")

    def told(self, action: Action) -> str:
        """Returns the calls without values, or the answer; a value counts only if the form gives it again.

        Of what was meant as a call and is none, the names of its tools are all that can be told from values.
        """
        if action.calls:
            return " ".join(f"{call.name} {json.dumps(_starred(call.arguments))}" for call in action.calls)
        answer = action.text.rpartition(_END_THINK)[2]
        if _THINK in answer:
            return THOUGHT
        if action.status == "none":
            return answer
        return " ".join(name for name in _NAME.findall(answer) if name in self._schemas) or UNREADABLE


class _UnreadableError(Exception):
    """What stands between the tags is no call; holds the action's status and its problem."""


def _json(value: object) -> str:
    """Returns JSON that holds no tag: `<` occurs in strings only, where it may be escaped."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _read_call(part: str) -> tuple[str, Any]:
    """Returns name and arguments of the text after one opening tag."""
    inside, closing, _ = part.partition(_CLOSE)
    if not closing:
        raise _UnreadableError("malformed_json", f"{_OPEN} without {_CLOSE}")
    try:
        call = json.loads(inside, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        raise _UnreadableError("malformed_json", "no JSON between the tags") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
        raise _UnreadableError("malformed_json", 'a call is {"name": ..., "arguments": {...}}')
    return call["name"], call["arguments"]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _UnreadableError("bad_args", "a name twice in one object")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    """Returns a number; ValueError for one like 1e999, which Python reads as infinity."""
    return value if math.isfinite(value := float(number)) else _refuse(number)


def _starred(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value and "*" for key, value in given.items()} if isinstance(given, dict) else given
        for name, given in arguments.items()
    }
