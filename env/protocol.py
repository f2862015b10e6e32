"""What an environment is: synchronous, picklable, without network or global state; replay is its snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pipeline.types import Event, Feedback, Message, Task, Verdict

Tools = Sequence[Mapping[str, Any]]
"""OpenAI function schemas."""

ParseStatus = Literal["ok", "none", "malformed_json", "unknown_tool", "bad_args", "too_many"]


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What an environment offers; `tools` are OpenAI function schemas."""

    tools: tuple[dict[str, Any], ...]
    max_turns: int
    in_threads: bool = False  # whether threads may play several episodes at once: steps wait for processes


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed call; its arguments fit the tool's schema."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """One assistant message: its text as sampled, and what the parser made of it."""

    text: str  # without the end-of-message token
    status: ParseStatus  # anything but `ok` and `none` becomes a tool message and an event
    calls: tuple[ToolCall, ...] = ()  # empty unless status is `ok`
    problem: str = ""  # what the parser objects to, for the tool message


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees first: the task's messages."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one assistant message led to: the environment's replies, and whether they are the last."""

    messages: tuple[Message, ...]
    reward: float = 0.0  # of this step: 0 before the end, the verdict's at the end
    terminated: bool = False  # by success, or by a message without a call
    truncated: bool = False  # by the turn limit
    events: tuple[Event, ...] = ()
    infra_error: str | None = None  # kind of failure that is not the policy's


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

    def close(self) -> None:
        """Frees what it holds; idempotent."""
        ...


def replay(env: Env, task: Task, seed: int, actions: Sequence[Action]) -> list[StepResult]:
    """Rebuilds a prefix of an episode in `env` and returns each action's result."""
    env.reset(task, seed)
    return [env.step(action) for action in actions]
