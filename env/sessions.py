"""Recorded sessions: whole episodes of some agent in OpenAI's messages form, with the replies that it got."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env.chat.neutral import tool_text
from env.chat.style import ChatStyle
from env.feedback_tool.calls import NAME as FEEDBACK_TOOL
from env.protocol import Action, Env, EnvSpec, Observation, StepResult, ToolCall
from pipeline.rows import BadRowError, shown
from pipeline.types import Feedback, Message, Task, Verdict

GOOD = 0.7
"""A recorded reward above it is a success: imitated, and looked at to end a stored phase (start value)."""
_OPEN, _END_THINK = "<tool_call>", "</think>"  # of the form that libraries have for any tool
_THOUGHTS = ("reasoning_content", "reasoning")  # where servers keep what was thought before a message
ROLES = ("system", "developer", "user", "assistant", "tool")


def is_good(reward: float) -> bool:
    """Returns whether somebody should imitate what earned this."""
    return reward > GOOD


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the agent, and what it was answered before its next one."""

    content: str
    calls: tuple[ToolCall, ...]
    replies: tuple[Message, ...] = ()
    thought: str = ""  # that a server kept apart from the content


@dataclass(frozen=True, slots=True)
class Session:
    """A whole episode; replies after its last message answer nobody."""

    opening: tuple[Message, ...]  # before the agent's first message
    turns: tuple[Turn, ...]

    @property
    def key(self) -> str:
        """What two sessions that say the same have in common; ids of calls are no part of it."""
        said: list[list[Any]] = []
        for turn in self.turns:
            said.append([turn.content, [[c.name, c.arguments] for c in turn.calls], turn.replies])
            said[-1] += (
                [turn.thought] if turn.thought else []
            )  # ids of rollouts without any stay as they were
        return json.dumps([self.opening, said], ensure_ascii=False, sort_keys=True)


def session_of(value: Any) -> Session:
    """Returns the session that a row's messages are; raises BadRowError for what is none.

    `tool_calls` is a list, or that list as JSON text, as the rollouts table has it; arguments are JSON text
    or an object. Content may come in parts of text.
    """
    if not isinstance(value, list) or not value:
        raise BadRowError("bad_messages", f"messages are {shown(value)}; allowed: a list of messages")
    messages = [_message(message, number) for number, message in enumerate(value, start=1)]
    spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not spoken:
        raise BadRowError("no_answer", f"none of {len(messages)} messages is the assistant's")
    if spoken[0] == 0:
        raise BadRowError("no_prompt", "the first message is the assistant's; something must come before it")
    turns = []
    for place, until in zip(spoken, [*spoken[1:], len(messages)], strict=True):
        if until == place + 1 < len(messages):
            raise BadRowError("no_reply", f"nobody answers message {place + 1}, yet the assistant goes on")
        calls, thought = _calls(value[place], place + 1), _thought(value[place], place + 1)
        replies = _in_order_of_calls(value[place], value[place + 1 : until], messages[place + 1 : until])
        turns.append(Turn(messages[place]["content"], calls, tuple(replies), thought))
    return Session(tuple(messages[: spoken[0]]), tuple(turns))


def _in_order_of_calls(asked: Any, given: Sequence[Any], replies: list[Message]) -> list[Message]:
    """Returns replies as calls were made, where ids say which is whose; else as they are."""
    calls = asked.get("tool_calls")
    ids = [call.get("id") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    by_id = {g.get("tool_call_id"): r for g, r in zip(given, replies, strict=True) if r["role"] == "tool"}
    if None in by_id or len(by_id) != len(calls or ()) or set(ids) != set(by_id):
        return replies
    return [*(by_id[one] for one in ids), *(r for r in replies if r["role"] != "tool")]


def _message(value: Any, number: int) -> Message:
    if not isinstance(value, Mapping) or value.get("role") not in ROLES:
        raise BadRowError(
            "bad_messages", f"message {number} is {shown(value)}; allowed: objects of role {', '.join(ROLES)}"
        )
    role = "system" if value["role"] == "developer" else value["role"]  # OpenAI's newer name
    content = value.get("content")
    if isinstance(content, list):
        texts = [p["text"] for p in content if isinstance(p, Mapping) and isinstance(p.get("text"), str)]
        content = "".join(texts) if len(texts) == len(content) else content
    if content is not None and not isinstance(content, str):
        raise BadRowError("bad_content", f"content of message {number} is {shown(content)}; allowed: text")
    return {"role": role, "content": content or ""}


def _thought(message: Mapping[str, Any], number: int) -> str:
    """Returns what was thought before a message, if it is kept apart from the content."""
    thought = next((message[name] for name in _THOUGHTS if message.get(name)), "")
    if not isinstance(thought, str):
        raise BadRowError(
            "bad_content", f"the thought of message {number} is {shown(thought)}; allowed: text"
        )
    return thought.strip()


def _calls(message: Mapping[str, Any], number: int) -> tuple[ToolCall, ...]:
    older = message.get("function_call")
    if any(older.values()) if isinstance(older, Mapping) else older:  # a table gives all rows its fields
        raise BadRowError(
            "bad_call", f"message {number} has the older `function_call`; allowed: `tool_calls`"
        )
    calls, found = _read(message.get("tool_calls"), number) or [], list[ToolCall]()
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        named = function if isinstance(function, Mapping) else {}
        name, arguments = named.get("name"), _read(named.get("arguments") or "{}", number)
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise _no_call(call, number)
        found.append(ToolCall(name, dict(arguments)))
    return tuple(found)


def _read(value: Any, number: int) -> Any:
    """Returns what JSON text holds, or another value as it is, if it is one that JSON text can hold."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # a surrogate alone is no text
    except (TypeError, ValueError, RecursionError):
        raise _no_call(value, number) from None
    return found


def _no_call(value: Any, number: int) -> BadRowError:
    words = "allowed: a name, arguments as an object or its JSON"
    return BadRowError("bad_call", f"message {number} calls {shown(value)}; {words}")


def said_in(turn: Turn, style: ChatStyle) -> tuple[str, str]:
    """Returns the text of an agent's message in a style, in two parts: its words, then its calls.

    A thought that was kept apart comes first where the style has thoughts. The content may hold the calls
    already, as this project stores them; where they cannot be told from words, all of it is words. Raises
    BadRowError for a message without words and calls, and if the style reads other calls in the text than
    were made. Whether it knows the tool that asks for feedback is the environment's choice, so a call of that
    need only be in a form for any tool.
    """
    words = content = without_stop(turn.content, style)
    if not turn.calls and not content.strip():
        raise BadRowError("says_nothing", "a message of the agent has neither words nor calls")
    if _is_apart(turn) and style.thinks:  # as Qwen3 and its template write it
        words = f"<think>\n{turn.thought}\n{_END_THINK}\n\n{content.lstrip()}"
    called = _called(turn.calls, style) if turn.calls else ""
    if turn.calls and (at := _first_call(words, turn.calls, called, style)) is not None:
        words, called = words[:at], words[at:]
    elif turn.calls and content:
        words += "\n"
    read = style.parse(without_stop(words + (called or ""), style))
    if turn.calls and (called is None or (read.calls != turn.calls and not _asks(turn.calls, style))):
        names = ", ".join(call.name for call in turn.calls)
        reason = f": {read.problem}" if called and read.problem else ""
        raise BadRowError("other_call", f"the style {style.name} cannot say its call of {names}{reason}")
    return words, called or ""


def without_stop(text: str, style: ChatStyle) -> str:
    """Returns a message without the stop token at its end; BadRowError if one is in it, and would end it."""
    text = text.removesuffix(style.stop_token)
    if style.stop_token in text:
        raise BadRowError("stop_token", f"{style.stop_token} is in it, which ends a message")
    return text


def _is_apart(turn: Turn) -> bool:
    return bool(turn.thought) and _END_THINK not in turn.content  # else the content holds it already


def thoughts_lost(session: Session, style: ChatStyle) -> int:
    """Returns how many messages of a session lose their thought, because the style has none."""
    return 0 if style.thinks else sum(_is_apart(turn) for turn in session.turns)


def _asks(calls: Sequence[ToolCall], style: ChatStyle) -> bool:
    texts = all(isinstance(given, str) for call in calls for given in call.arguments.values())
    return style.is_chat_template and texts and [call.name for call in calls] == [FEEDBACK_TOOL]


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
