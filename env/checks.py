"""What environments give back, before it counts: one that breaks its promise fails its episode, not a stage.

Each check returns what is wrong in words, or "". A table would refuse it a whole shard later, or store it.
"""

import json
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, get_args

import numpy as np

from env.feedback_tool.calls import NAME
from env.feedback_tool.reward import MAX_CALLS, tool_reward
from env.protocol import Observation, StepResult, Tools
from pipeline.tables import MESSAGE_KEYS
from pipeline.types import Event, Feedback, Message, StepVerdict, Verdict, VerifierStatus

_ROLES = ("system", "user", "assistant", "tool")
_STATUSES: tuple[str, ...] = get_args(VerifierStatus)
_LOWEST = tool_reward(0.0, 1.0, MAX_CALLS)
"""Of a reward, where calls for feedback have a price; else 0."""
_LAST_TURN = 2**31 - 1
"""That a table can hold."""


def opening_problem(opening: Observation) -> str:
    """Checks what a policy sees first."""
    return _not_a(opening, Observation) or messages_problem(opening.messages)


def step_problem(result: StepResult) -> str:
    """Checks what a message led to."""
    if problem := _not_a(result, StepResult) or _not_all(result.events, Event, "events"):
        return problem
    for event in result.events:
        fields = event.fields if isinstance(event.fields, tuple | list) else (None,)
        is_placed = isinstance(event.turn, int) and abs(event.turn) <= _LAST_TURN
        if not is_placed or not _are_texts(event.code, event.target, event.detail, *fields):
            return f"an event is {ascii(event)[:100]}; allowed: Unicode texts, and a turn of 32 bits"
    if not _are_flags(result.terminated, result.truncated):
        return f"it ends by {result.terminated!r:.50}, {result.truncated!r:.50}; allowed: True, False"
    if result.infra_error is not None and not _are_texts(result.infra_error):
        return f"infra_error is a {type(result.infra_error).__name__}; allowed: text"
    return messages_problem(result.messages)


def verdict_problem(verdict: Verdict, tools: Tools) -> str:
    """Checks a grade: a reward, or a kind of failure; `tools` are the environment's."""
    if problem := _not_a(verdict, Verdict):
        return problem
    if verdict.infra_error is not None:
        return "" if _are_texts(verdict.infra_error) else "infra_error is no text"
    reward, success = verdict.reward, verdict.success
    if reward is None:
        return "reward is None, and infra_error does not say why"
    lowest = _LOWEST if any(tool["function"]["name"] == NAME for tool in tools) else 0.0
    if not isinstance(reward, Real) or not lowest <= reward <= 1:  # NaN is in no range
        return f"reward is {reward!r:.50}; allowed: {lowest:g} to 1"
    if not _are_flags(success) or (success and reward <= lowest):
        return f"success is {success!r:.50} with reward {reward!r}; allowed: True above {lowest:g}, or False"
    if not isinstance(verdict.cost, Real) or not 0 <= verdict.cost < math.inf:
        return f"cost is {verdict.cost!r:.50}; allowed: 0 and above"
    if problem := _not_all(verdict.steps, StepVerdict, "steps"):
        return problem
    for step in verdict.steps:
        is_placed = isinstance(step.message_index, int) and isinstance(step.char_start, int)
        if step.status not in _STATUSES or not is_placed or not _are_texts(step.code, step.message):
            return f"a step's verdict is {ascii(step)[:100]}; allowed: {', '.join(_STATUSES)}, places, texts"
    return ""


def feedback_problem(feedback: Feedback | None) -> str:
    """Checks what is said of a failed attempt."""
    if feedback is None:
        return ""
    if problem := _not_a(feedback, Feedback):
        return f"{problem}, None"
    return "" if _are_texts(feedback.text, feedback.source) else "it holds what is no Unicode text"


def messages_problem(messages: Sequence[Message]) -> str:
    """Checks what an environment says: keys that are stored, roles that are rendered, Unicode text."""
    if problem := _not_all(messages, dict, "messages"):
        return problem
    for number, message in enumerate(messages, start=1):
        if not {"role", "content"} <= set(message) <= set(MESSAGE_KEYS):
            allowed = f"role and content, perhaps {', '.join(MESSAGE_KEYS[2:])}"
            return f"message {number} has keys {list(message)!a:.100}; allowed: {allowed}"
        if message["role"] not in _ROLES:
            return f"message {number} has role {message['role']!r:.50}; allowed: {', '.join(_ROLES)}"
        if not _are_texts(message["content"], message.get("tool_call_id", "")) or not is_json(message):
            return f"message {number} holds what is no Unicode text: {ascii(message)[:100]}"
    return ""


def _not_a(value: Any, kind: type) -> str:
    """Says that something else came: five values or a dict, as other interfaces have it, or nothing."""
    return "" if isinstance(value, kind) else f"it is a {type(value).__name__}; allowed: {kind.__name__}"


def _not_all(values: Any, kind: type, name: str) -> str:
    """Says that something is no sequence of a kind; a text is one of texts, and nobody means that."""
    if not isinstance(values, tuple | list):
        return f"{name} is a {type(values).__name__}; allowed: tuple of {kind.__name__}"
    return next((f"{name}: {problem}" for value in values if (problem := _not_a(value, kind))), "")


def _are_flags(*values: Any) -> bool:
    return all(isinstance(value, bool | np.bool_) for value in values)


def _are_texts(*values: Any) -> bool:
    return all(isinstance(value, str) and is_json(value) for value in values)


def is_json(value: Any) -> bool:
    """Returns whether a value is JSON without NaN, and all its texts Unicode."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # a surrogate alone is no text
    except (TypeError, ValueError, RecursionError):
        return False
    return True
