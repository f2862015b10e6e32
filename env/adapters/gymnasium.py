"""Gymnasium: text in, text out, five values a step.

An action is one assistant message in a prompt style, an observation what the environment says to it. Which
task is played is `options["task"]`, else drawn from `tasks` by the seed of `reset`.
"""

import string
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from env.adapters.session import OVER, opening_of, step_of, text_of, verdict_of
from env.catalog import offer_of
from env.chat.neutral import MAX_TOOL_CHARACTERS
from pipeline.types import Task


class AnyText(Text):
    """All text up to a length; samples are printable ASCII."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Returns whether this is text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


class TextEnv(gymnasium.Env[str, str]):
    """An environment of the catalogue behind Gymnasium's interface.

    `info` holds after `reset` the schemas of the level's tools, of a step its events, and at the end the
    verdict. A failure of the environment itself, its grader included, truncates the episode
    with reward NaN and `info["infra_error"]`: never 0. One of `reset`, whose info has it too, does so at the
    first step.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, tasks: Sequence[Task], environment: str = "phone", style: str = "full") -> None:
        self._tasks = tasks
        self._env = offer_of(environment).env()
        self._failure: str | None = None
        self.style = offer_of(environment).style(style)
        self.action_space = AnyText(100_000)
        self.observation_space = AnyText(4 * MAX_TOOL_CHARACTERS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode; returns the task's words. The seed decides the wording too."""
        super().reset(seed=seed)
        task = (options or {}).get("task") or self._tasks[int(self.np_random.integers(len(self._tasks)))]
        wording = int(self.np_random.integers(2**31)) if seed is None else seed
        opening = opening_of(self._env, task, wording)
        info = {
            "messages": list(opening.messages),
            "task_id": task.task_id,
            "tools": list(self._env.spec.tools),
        }
        self._failure = opening.infra_error
        if self._failure is not None:
            info["infra_error"] = self._failure
        return text_of(opening.messages), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays one assistant message; returns reply, reward, terminated, truncated, info."""
        result = OVER if self._failure is not None else step_of(self._env, self.style.parse(action))
        info: dict[str, Any] = {"messages": list(result.messages), "events": list(result.events)}
        failure = self._failure or result.infra_error
        if failure is None and (result.terminated or result.truncated):
            info["verdict"] = verdict_of(self._env)
            failure = info["verdict"].infra_error
        if failure is not None:
            return "", float("nan"), False, True, {**info, "infra_error": failure}
        return text_of(result.messages), result.reward, result.terminated, result.truncated, info

    def close(self) -> None:
        """Frees what the environment holds."""
        self._env.close()
