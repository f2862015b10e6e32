"""What an environment is: synchronous, picklable, without network or global state; replay is its snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pipeline.types import Event, Feedback, Message, Task, Verdict

Tools = Sequence[Mapping[str, Any]]
"""OpenAI function schemas."""

ParseStatus = Literal["ok", "none", "malformed_json", "unknown_tool", "bad_args", "too_many"]


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What an environment offers. `tools` are OpenAI function schemas."""

    env_id: str
    version: int
    tools: tuple[dict[str, Any], ...]
    max_turns: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed call. Arguments have passed the tool's schema."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """One assistant message: its text as sampled, and what the parser made of it.

    Attributes:
        text: the message, without the end-of-message token.
        status: the parser's word; anything but `ok` and `none` becomes a tool message and an event.
        calls: parsed calls; empty unless status is `ok`.
        problem: what the parser objects to, for the tool message.
    """

    text: str
    status: ParseStatus
    calls: tuple[ToolCall, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees first: the task's messages."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one assistant message led to.

    Attributes:
        messages: the environment's replies, in OpenAI form.
        reward: of this step; 0 before the end, the verdict's at the end.
        terminated: success, or a message without a call.
        truncated: the turn limit.
        events: what happened in this turn.
        infra_error: kind of failure that is not the policy's, or None.
    """

    messages: tuple[Message, ...]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    events: tuple[Event, ...] = ()
    infra_error: str | None = None


class Env(Protocol):
    """One episode at a time; state is a function of (task, seed, actions)."""

    spec: EnvSpec

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode. The task fixes the world, the seed only wording."""
        ...

    def step(self, action: Action) -> StepResult:
        """Plays one assistant message. Never raises on model output."""
        ...

    def verdict(self) -> Verdict:
        """Grades the episode as it stands: a pure function of state."""
        ...

    def feedback(self) -> Feedback | None:
        """Says what the episode's events teach, or None when there is nothing to say."""
        ...

    def state_digest(self) -> str:
        """Returns the SHA-256 of the state's canonical JSON."""
        ...

    def close(self) -> None:
        """Frees what it holds; idempotent."""
        ...


def replay(env: Env, task: Task, seed: int, actions: Sequence[Action]) -> list[StepResult]:
    """Rebuilds a prefix of an episode in `env` and returns each action's result."""
    env.reset(task, seed)
    return [env.step(action) for action in actions]


class ChatStyle(Protocol):
    """How messages become text and text becomes actions: the prompt style of a run.

    `render_prompt(messages)` then, per turn, the sampled text, then `render_replies(messages)` is the
    whole text of an episode: append-only, so each prompt is a prefix of the next. The assistant's message
    is sampled up to and including `stop_token`. `special_tokens` are those that a tokenizer must have,
    `template` is the jinja source that a server renders the same text with.
    """

    name: str
    stop_token: str
    special_tokens: tuple[str, ...]
    digest: str
    template: str

    def render_prompt(
        self, messages: Sequence[Message], previous_attempts: Sequence[str], tools: Tools | None = None
    ) -> str:
        """Returns the text up to the first sampled token: tools, and feedback on earlier attempts."""
        ...

    def render_replies(self, messages: Sequence[Message]) -> str:
        """Returns the text after a sampled message: the replies and the next assistant cue."""
        ...

    def parse(self, text: str) -> Action:
        """Returns the action of one assistant message; total: never raises."""
        ...

    def action_of(self, call: ToolCall | None) -> Action:
        """Returns the action with the text of this call; None ends the episode without one."""
        ...

    def with_thought(self, action: Action, thought: str) -> Action:
        """Returns the action with a thought before it, which the parser passes over."""
        ...

    def attempt_line(self, actions: Sequence[Action], feedback: str) -> str:
        """Returns one earlier attempt, with the feedback it earned, as an element of `previous_attempts`."""
        ...

    def assistant_message(self, action: Action, turn: int) -> Message:
        """Returns the message in OpenAI form, arguments as a JSON string, ids from the turn."""
        ...
