"""One episode played by names and arguments, as libraries hand calls over that parse themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from env.catalog import offer_of
from env.chat.calls import checked, schemas_of
from env.play.guard import FailureError, graded, guarded, opened, stepped
from env.protocol import Action, Env, StepResult, Tools
from pipeline.errors import ConfigError
from pipeline.tables import task_from
from pipeline.types import Message, Task, Verdict

OVER = StepResult(({"role": "tool", "content": "The conversation is over."},))
"""What a call gets after the end; it changes nothing."""


class Session:
    """One episode of an environment.

    A failure that is not the policy's ends it without a reward: it is kept in `infra_error`, since libraries
    would count an exception as the policy's failure.
    """

    def __init__(self, environment: str) -> None:
        self._env = env_of_calls(environment)
        self._schemas = schemas_of(self._env.spec.tools)
        self.is_over = True
        self.infra_error: str | None = None

    def start(self, row: Mapping[str, Any]) -> None:
        """Starts the episode of one row of a tasks table; its column `seed`, if any, seeds the wording."""
        self.infra_error = None
        self._gained = 0.0
        try:
            opened(self._env, *guarded("row", lambda: (task_from(row), int(row.get("seed") or 0))))
        except FailureError as failure:
            self.infra_error = _said(failure)
        self.is_over = self.infra_error is not None

    def call(self, name: str, arguments: Any) -> StepResult:
        """Plays a message with one call. Never raises on what a model says."""
        if self.is_over:
            return replace(OVER, infra_error=self.infra_error)
        result = step_of(self._env, checked(self._schemas, "", [(name, arguments)]))
        self.infra_error = result.infra_error
        self.is_over = result.terminated or result.truncated or result.infra_error is not None
        return result

    def verdict(self) -> Verdict:
        """Grades the episode as it stands."""
        if self.infra_error is not None:
            return Verdict(None, None, infra_error=self.infra_error)
        return verdict_of(self._env)

    def gain(self) -> float:
        """Returns by how much the verdict's reward rose since it was last asked for; NaN where it has none.

        So gains add up to it wherever a policy stops. Rewards of steps need not: an environment pays at the
        end, which may be a message that nobody hands over.
        """
        before, reward = self._gained, self.verdict().reward
        self._gained = float("nan") if reward is None else reward
        return self._gained - before


def env_of_calls(environment: str) -> Env:
    """Returns an environment by name; raises ConfigError unless calls alone decide its verdict."""
    offer = offer_of(environment)
    if not offer.graded_by_calls:
        raise ConfigError(
            f"the environment {environment} may be answered by a message without a call, and TRL and verl "
            "hand over calls alone: a right answer would have reward 0; allowed: phone, or one's own whose "
            "offer says graded_by_calls. Next: play it by env.adapters.gymnasium, whose actions are whole "
            "messages (docs/environments.md)"
        )
    return offer.env()


def opening_of(env: Env, task: Task, seed: int) -> StepResult:
    """Returns what a policy sees first, as a reply; what fails there is its failure."""
    try:
        return StepResult(tuple(opened(env, task, seed).messages))
    except FailureError as failure:
        return StepResult((), infra_error=_said(failure))


def step_of(env: Env, action: Action) -> StepResult:
    """Returns what a message led to; what is raised inside the environment, or a bad reply, is a failure."""
    try:
        return stepped(env, action)
    except FailureError as failure:
        return replace(OVER, infra_error=_said(failure))


def verdict_of(env: Env) -> Verdict:
    """Returns an environment's verdict; what is raised inside it, or a bad one, is one without a reward."""
    try:
        return graded(env)
    except FailureError as failure:
        return Verdict(None, None, infra_error=_said(failure))


def _said(failure: FailureError) -> str:
    return failure.detail if failure.kind == "infra_error" else failure.kind


def tools_of_row(environment: str, row: Mapping[str, Any]) -> Tools:
    """Returns the tools that the task of a row has; not every level has all."""
    env = env_of_calls(environment)
    env.reset(task_from(row), 0)
    return env.spec.tools


def text_of(messages: Sequence[Message]) -> str:
    """Returns what the environment says, as one text."""
    return "\n".join(message["content"] for message in messages)
