"""The call `get_feedback`: its schema, its form in a prompt style, and where the answer in it stands."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from env.chat.full import FullStyle
from env.chat.style import STOP_TOKEN, ChatStyle
from env.protocol import Action, ToolCall, Tools
from pipeline.ids import digest
from pipeline.types import Event, Message

NAME = "get_feedback"
ANSWER, REASONING = "current_answer", "reasoning"


def schema(answers_once: bool) -> dict[str, Any]:
    """Returns the tool's OpenAI schema; where one message answers, the call says what it asks about."""
    told = {
        REASONING: {"type": "string", "description": "how you came to it"},
        ANSWER: {"type": "string", "description": "the whole answer as you would give it"},
    }
    return {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "Says which error was found so far, if any. Every call has a price.",
            "parameters": {
                "type": "object",
                "properties": told if answers_once else {},
                "required": [ANSWER] if answers_once else [],
                "additionalProperties": False,
            },
        },
    }


def is_call(action: Action) -> bool:
    """Returns whether a message asks for feedback."""
    return action.status == "ok" and action.calls[0].name == NAME


def asked_about(action: Action) -> str:
    """Returns the answer that a call asks about, its reasoning before it, as a message would give it."""
    arguments = action.calls[0].arguments
    return "\n".join(arguments[name] for name in (REASONING, ANSWER) if arguments.get(name))


def answer_spans(action: Action) -> list[tuple[int, int]]:
    """Returns where in a call's text its answer stands, as characters: at the start, or in JSON.

    In a recorded call it may be no text, and escaped as whoever wrote it does.
    """
    spans, arguments = [], action.calls[0].arguments
    for said in (arguments[name] for name in (REASONING, ANSWER) if arguments.get(name) not in (None, "")):
        forms = [json.dumps(said, ensure_ascii=is_ascii) for is_ascii in (False, True)]
        forms += [form.replace("<", "\\u003c") for form in forms]
        marks = int(isinstance(said, str))
        if action.text.startswith(str(said)):
            spans.append((0, len(str(said))))
        elif found := [form for form in forms if form in action.text]:
            start = action.text.rindex(found[0])
            spans.append((start + marks, start + len(found[0]) - marks))
    return spans


def wrong_answers(action: Action, events: Sequence[Event]) -> list[tuple[int, int]]:
    """Returns `answer_spans` of a message that led to these events, if it asked about what was wrong."""
    is_wrong = any(event.code == NAME and event.target == "unsolved" for event in events)
    return answer_spans(action) if is_wrong else []


def with_call(style: ChatStyle, answers_once: bool, added: Sequence[str], thinking: bool) -> ChatStyle:
    """Returns a style in which a policy can ask: one more tool, or a last line where there are no tools."""
    if isinstance(style, FullStyle):
        return FullStyle((*style.tools, schema(answers_once)), added, thinking)
    return LineStyle(style, answers_once)


class LineStyle(ChatStyle):
    """Another style in which a message whose last line is `get_feedback` asks about what stands before it."""

    def __init__(self, inner: ChatStyle, answers_once: bool) -> None:
        super().__init__(inner.template, digest(NAME, inner.digest))
        self.inner, self.answers_once = inner, answers_once
        self.name, self.tools = inner.name, inner.tools
        self.stop_token, self.special_tokens = inner.stop_token, inner.special_tokens
        self.max_told_characters, self.ascii_arguments = inner.max_told_characters, inner.ascii_arguments
        self.is_chat_template = inner.is_chat_template

    def render_prompt(
        self, messages: Sequence[Message], previous_attempts: Sequence[str] = (), tools: Tools | None = None
    ) -> str:
        """Returns what the other style writes: the line is learnt by example."""
        return self.inner.render_prompt(messages, previous_attempts, tools)

    def parse(self, text: str) -> Action:
        """Returns the call, or what the other style reads. A call beside the other's call is one too many."""
        body = text.removesuffix(STOP_TOKEN)
        before, _, last = body.rstrip().rpartition("\n")
        if last.strip() != NAME:
            return self.inner.parse(body)
        if self.answers_once:
            return Action(body, "ok", (ToolCall(NAME, {ANSWER: before}),))
        if before and self.inner.parse(before).status in ("ok", "too_many"):
            return Action(body, "too_many", problem="one call per message")
        return Action(body, "ok", (ToolCall(NAME, {}),))

    def action_of(self, call: ToolCall | None) -> Action:
        """Returns the action with the text of this call; None ends the episode."""
        if call is None or call.name != NAME:
            return self.inner.action_of(call)
        answer = call.arguments.get(ANSWER, "")
        return Action(f"{answer}\n{NAME}" if answer else NAME, "ok", (call,))

    def told(self, action: Action) -> str:
        """Returns a message as a later attempt hears of it: an answer that was asked about, then the call."""
        if not is_call(action):
            return self.inner.told(action)
        answer = asked_about(action)
        return f"{self.inner.told(replace(action, text=answer))} {NAME}" if answer else NAME
