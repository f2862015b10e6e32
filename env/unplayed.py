"""An environment that nobody can play, for whoever has recorded sessions of an agent and no simulator.

    # support.py, beside the project
    from env.unplayed import unplayed
    SUPPORT = unplayed("support", TOOLS)  # OpenAI's schemas, as the agent had them

Its tasks are what sessions open with, so `tasks.rows` is the file of the sessions. `sft`, `rollouts` without
anything played, `labels`, `critic` and `stored` need no more; whatever would play is told that it cannot.
"""

from collections.abc import Mapping
from typing import Any

from env.chat.full import FullStyle
from env.offer import EnvironmentOffer, TaskSet
from env.protocol import Action, EnvSpec, Observation, StepResult, Tools
from env.row_splits import Problem
from env.sessions import session_of
from env.sources import TableTasks, read_tasks
from pipeline.rows import Field
from pipeline.types import Feedback, Task, Verdict

FIELDS = {"messages": Field(("messages", "conversation"))}
NO_SIMULATOR = "no_simulator"
"""The status of a rollout that somebody wanted to play."""
MESSAGES = 8
"""Of a session, for `vdapo plan` (start value)."""


def unplayed(name: str, tools: Tools) -> EnvironmentOffer:
    """Returns an environment of sessions alone, prompted in the full style with the agent's tools."""

    def make_tasks(settings: TableTasks, seed: int) -> TaskSet:
        return read_tasks(settings, seed, environment=name, fields=FIELDS, problem_of=_opening)

    return EnvironmentOffer(
        name=name,
        settings=TableTasks,
        make_tasks=make_tasks,
        make_env=lambda settings, verbosity: _Unplayed(tools),
        styles={"full": lambda added, thinking: FullStyle(tools, added, thinking=thinking)},
    )


def _opening(values: Mapping[str, Any]) -> Problem:
    return Problem(session_of(values["messages"]).opening, "", "session")


class _Unplayed:
    """Opens an episode, and ends it there as a failure that is not the policy's."""

    def __init__(self, tools: Tools) -> None:
        self.spec = EnvSpec(tuple(map(dict, tools)), MESSAGES)

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        return StepResult((), infra_error=NO_SIMULATOR)

    def verdict(self) -> Verdict:
        return Verdict(None, None, infra_error=NO_SIMULATOR)

    def feedback(self) -> Feedback | None:
        return None

    def close(self) -> None:
        pass
