"""Recorded sessions: whole episodes of some agent in OpenAI's messages form, with the replies that it got."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env.chat.neutral import tool_text
from env.chat.style import ChatStyle
from env.protocol import Action, Env, EnvSpec, Observation, StepResult, ToolCall
from pipeline.rows import BadRowError, shown
from pipeline.types import Feedback, Message, Task, Verdict

GOOD = 0.7
"""A recorded reward above it is a success: imitated, and looked at to end a stored phase (start value)."""
FEEDBACK_TOOL = "get_feedback"
"""The tool by which an agent asks what is wrong with its attempt."""
_OPEN, _END_THINK = "<tool_call>", "</think>"  # of the form that libraries have for any tool
ROLES = ("system", "user", "assistant", "tool")


def is_good(reward: float) -> bool:
    """Returns whether somebody should imitate what earned this."""
    return reward > GOOD


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the agent, and what it was answered before its next one."""

    message: Message
    calls: tuple[ToolCall, ...]
    replies: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A whole episode; replies after its last message answer nobody."""

    opening: tuple[Message, ...]  # before the agent's first message
    turns: tuple[Turn, ...]

    @property
    def key(self) -> str:
        """What two sessions that say the same have in common."""
        said = [self.opening, *((turn.message, turn.replies) for turn in self.turns)]
        return json.dumps(said, ensure_ascii=False, sort_keys=True)


def session_of(value: Any) -> Session:
    """Returns the session that a row's messages are; raises BadRowError for what is none.

    `tool_calls` is a list, or that list as JSON text, as the rollouts table has it; arguments are JSON text
    or an object. Content may come in parts of text.
    """
    if not isinstance(value, list) or not value:
        raise BadRowError("bad_messages", f"messages are {shown(value)}; allowed: a list of messages")
    messages = [_message(message, place) for place, message in enumerate(value, start=1)]
    spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken:
        raise BadRowError("no_answer", f"none of {len(messages)} messages is the assistant's")
    if spoken[0] == 0:
        raise BadRowError("no_prompt", "the first message is the assistant's; something must come before it")
    turns = []
    for place, until in zip(spoken, [*spoken[1:], len(messages)], strict=True):
        if until == place + 1 < len(messages):
            raise BadRowError("no_reply", f"nobody answers message {place + 1}, yet the assistant goes on")
        message = messages[place]
        turns.append(Turn(message, _calls(message, place + 1), tuple(messages[place + 1 : until])))
    return Session(tuple(messages[: spoken[0]]), tuple(turns))


def _message(value: Any, number: int) -> Message:
    if not isinstance(value, Mapping) or value.get("role") not in ROLES:
        raise BadRowError(
            "bad_messages", f"message {number} is {shown(value)}; allowed: objects of role {', '.join(ROLES)}"
        )
    message: Message = {"role": value["role"], "content": _content(value.get("content"), number)}
    calls = value.get("tool_calls")
    if isinstance(calls, str):
        try:
            calls = json.loads(calls)
        except (ValueError, RecursionError):
            raise BadRowError("bad_call", f"tool_calls of message {number} are no JSON") from None
    if calls:
        message["tool_calls"] = calls
    if isinstance(name := value.get("tool_call_id"), str):
        message["tool_call_id"] = name
    return message


def _content(value: Any, number: int) -> str:
    if isinstance(value, list):
        texts = [
            part["text"] for part in value if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        ]
        value = "".join(texts) if len(texts) == len(value) else value
    if value is not None and not isinstance(value, str):
        raise BadRowError("bad_content", f"content of message {number} is {shown(value)}; allowed: text")
    return value or ""


def _calls(message: Message, number: int) -> tuple[ToolCall, ...]:
    calls, found = message.get("tool_calls", []), list[ToolCall]()
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        named = function if isinstance(function, Mapping) else {}
        name, given = named.get("name"), named.get("arguments")
        try:
            arguments = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise BadRowError(
                "bad_call",
                f"message {number} calls {shown(call)}; allowed: a name, arguments as an object or its JSON",
            )
        found.append(ToolCall(name, dict(arguments)))
    return tuple(found)


def said_in(turn: Turn, style: ChatStyle) -> tuple[str, str]:
    """Returns the text of an agent's message in a style, in two parts: its words, then its calls.

    The content may hold the calls already, as this project stores them; where they cannot be told from words,
    all of it is words. Raises BadRowError if the style reads other calls in the text than were made. Whether
    it knows the tool that asks for feedback is the environment's choice, so calls of that need only be in a
    form for any tool.
    """
    words = str(turn.message["content"]).removesuffix(style.stop_token)
    if style.stop_token in words:
        raise BadRowError("stop_token", f"{style.stop_token} is in it, which ends a message")
    if not turn.calls:
        return words, ""
    called = _called(turn.calls, style)
    if (at := _first_call(words, turn.calls, called, style)) is not None:
        words, called = words[:at], words[at:]
    elif words:
        words += "\n"
    read = style.parse(words + (called or ""))
    asks = style.is_chat_template and {call.name for call in turn.calls} == {FEEDBACK_TOOL}
    if called is None or (read.calls != turn.calls and not asks):
        names = ", ".join(call.name for call in turn.calls)
        reason = f": {read.problem}" if called and read.problem else ""
        raise BadRowError("other_call", f"the style {style.name} cannot say its call of {names}{reason}")
    return words, called


def _first_call(words: str, calls: tuple[ToolCall, ...], called: str | None, style: ChatStyle) -> int | None:
    """Returns the character at which calls begin that a content holds already; None if it holds none."""
    if style.is_chat_template:
        at = words.find(_OPEN, words.rfind(_END_THINK) + 1)
        return None if at < 0 else at
    if style.parse(words).calls != calls:
        return None
    return len(words) - len(called) if called and words.endswith(called) else len(words)


def _called(calls: Sequence[ToolCall], style: ChatStyle) -> str | None:
    """Returns the text of calls, by the template where that is the libraries' own; None if there is none."""
    if style.is_chat_template:
        asked: Message = {"role": "user", "content": ""}
        made = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        cue = style.render([asked], tools=(), add_generation_prompt=True)
        said = style.render([asked, {"role": "assistant", "content": "", "tool_calls": made}], tools=())
        return said.removeprefix(cue).removesuffix("\n").removesuffix(style.stop_token)
    try:
        return "\n".join(style.action_of(call).text for call in calls)
    except (ValueError, KeyError, TypeError, AttributeError):  # arguments may be anything
        return None


def replies_of(turn: Turn, number: int) -> tuple[Message, ...]:
    """Returns the replies to a message as an environment gives them: harmless text, calls by our ids."""
    replies, calls = list[Message](), 0
    for reply in turn.replies:
        message: Message = {"role": reply["role"], "content": tool_text(reply["content"])}
        if reply["role"] == "tool":
            message["tool_call_id"] = f"call_{number}_{calls}"
            calls += 1
        replies.append(message)
    return tuple(replies)


class SessionEnv:
    """An environment that answers as a session was answered, whatever is said; its grade is the recorded one.

    It begins as the task does in `env`. Nobody judges the steps: their verdicts are unknown.
    """

    def __init__(self, env: Env, session: Session, reward: float) -> None:
        self.spec: EnvSpec = env.spec
        self._env, self._session, self._reward, self._said = env, session, reward, 0

    def reset(self, task: Task, seed: int) -> Observation:
        """Returns the task's own opening."""
        self._said = 0
        opening = self._env.reset(task, seed)
        self.spec = self._env.spec
        return opening

    def step(self, action: Action) -> StepResult:
        """Returns what was recorded after this message; the last one ends the episode."""
        number, self._said = self._said, self._said + 1
        turns = self._session.turns
        return StepResult(replies_of(turns[number], number), terminated=self._said == len(turns))

    def verdict(self) -> Verdict:
        """Returns the recorded reward."""
        return Verdict(self._reward, is_good(self._reward))

    def feedback(self) -> Feedback | None:
        """Returns None: what the session was told stands in it."""
        return None

    def close(self) -> None:
        """Closes the environment that it began in."""
        self._env.close()


def opening_words(messages: Sequence[Message]) -> list[Message]:
    """Returns what the user says: an opening without instructions to the agent."""
    return [message for message in messages if message["role"] == "user"]
