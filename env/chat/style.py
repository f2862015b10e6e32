"""How messages become text and text becomes actions: the prompt style of a run."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NoReturn

import jinja2

from env.chat.neutral import one_line
from env.protocol import Action, ToolCall, Tools
from pipeline.types import Message

STOP_TOKEN = "<|im_end|>"
MAX_FEEDBACK_CHARACTERS = 600
FROM_OPENAI = """
{%- set read = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- set call = message.tool_calls[0] if message.tool_calls and not message.content else none -%}
{%- if call and call.function.arguments is string -%}
{{- raise_exception("arguments of a call are text, and this template takes an object: json.loads them") -}}
{%- endif -%}
{%- if message.content is not string -%}{%- set message = dict(message, content="") -%}{%- endif -%}
{%- set read.messages = read.messages + [message] -%}
{%- endfor -%}
{%- set messages = read.messages -%}
""".strip()
"""Stands before a template of lines: content that is null is no text, and a call's arguments are no line.

It is in no digest, because messages of episodes have texts alone, whose tokens it leaves as they are.
"""


class ChatStyle(ABC):
    """A prompt style; its jinja `template` is the one source of all texts, here and in a server.

    `render_prompt(messages)` then, per turn, the sampled text, then `render_replies(messages)` is the
    whole text of an episode: append-only, so each prompt is a prefix of the next. The assistant's message
    is sampled up to and including `stop_token`.
    """

    name: str
    stop_token = STOP_TOKEN
    special_tokens: tuple[str, ...] = (STOP_TOKEN,)  # that a tokenizer must have
    max_told_characters = 300  # of one message of an earlier attempt
    ascii_arguments = False  # whether arguments in OpenAI messages escape what is no ASCII
    thinks = False  # whether a message may begin with a thought between `<think>` and `</think>`
    is_chat_template = False  # whether libraries render whole dialogues with it, which must preserve prefixes
    tools: Tools = ()  # that its prompts list
    serve_options: tuple[str, ...] = ()  # of `vllm serve`: what reads calls and thoughts from its messages

    def __init__(self, template: str, digest: str) -> None:
        self.template = template
        self.digest = digest
        self._template = _compiled(template)

    def render(
        self,
        messages: Sequence[Message],
        previous_attempts: Sequence[str] = (),
        tools: Tools | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Returns messages as text, some tools before them (the style's by default), as a server does.

        Earlier attempts, lines of `attempt_line`, go into the first user message.
        """
        return self._template.render(
            messages=messages,
            previous_attempts=previous_attempts,
            tools=self.tools if tools is None else tools,
            add_generation_prompt=add_generation_prompt,
        )

    def render_prompt(
        self, messages: Sequence[Message], previous_attempts: Sequence[str] = (), tools: Tools | None = None
    ) -> str:
        """Returns the text up to the first sampled token; see `render`."""
        return self.render(messages, previous_attempts, tools, add_generation_prompt=True)

    def render_replies(self, messages: Sequence[Message]) -> str:
        """Returns the text after a sampled message (its stop token included): replies, then the next cue."""
        sampled = {"role": "assistant", "content": ""}
        text = self.render([sampled, *messages], tools=(), add_generation_prompt=True)
        return text.removeprefix(self.render([sampled], tools=()).removesuffix("\n"))

    @abstractmethod
    def parse(self, text: str) -> Action:
        """Returns the action of one assistant message; total: never raises."""

    @abstractmethod
    def action_of(self, call: ToolCall | None) -> Action:
        """Returns the action with the text of this call; None ends the episode without one."""

    @abstractmethod
    def told(self, action: Action) -> str:
        """Returns a message as a later attempt hears of it: without thoughts, and without values sent."""

    def with_thought(self, action: Action, thought: str) -> Action:
        """Returns the action with a thought before it, which the parser passes over."""
        return replace(action, text=f"{thought}\n{action.text}")

    def attempt_line(self, actions: Sequence[Action], feedback: str) -> str:
        """Returns one earlier attempt for `previous_attempts`: its messages, then the feedback."""
        texts = [one_line(self.told(action), self.max_told_characters) for action in actions]
        return f"{'; '.join(texts)} => {one_line(feedback, MAX_FEEDBACK_CHARACTERS)}"

    def assistant_message(self, action: Action, turn: int) -> Message:
        """Returns the message in OpenAI form; its content is the text as sampled, calls included."""
        message: Message = {"role": "assistant", "content": action.text}
        if action.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{turn}_{place}",
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(call.arguments, ensure_ascii=self.ascii_arguments),
                    },
                }
                for place, call in enumerate(action.calls)
            ]
        return message


def _raise_exception(problem: str) -> NoReturn:
    raise jinja2.TemplateError(problem)


@cache
def _compiled(source: str) -> jinja2.Template:
    """Returns a chat template as transformers compiles it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(source)
