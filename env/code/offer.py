"""What programming problems offer to the stages."""

import re
from typing import Literal

from env.chat.full import FullStyle
from env.chat.plain import PlainStyle
from env.code import scripted
from env.code.environment import CodeEnv
from env.code.feedback import call_text
from env.code.problems import Problem
from env.code.rows import FIELDS, problem_of
from env.code.tasks import own_tasks
from env.offer import Demonstrators, EnvironmentOffer, ScriptedAgent, TaskSet
from env.sandbox import shared_sandbox
from env.sources import TableTasks, read_tasks
from pipeline.settings import setting
from pipeline.types import Task

MESSAGE_LINES = 12
"""Of a message, for `vdapo plan` (start value): the own solutions have 8 on average; a line is a step."""


class CodeTasks(TableTasks):
    """Tasks: programming problems, of rows or the project's own."""

    reward: Literal["all", "share"] = setting(
        "all", description="1 if a solution passes every test, else 0; or the share of tests that it passes"
    )


def make_tasks(settings: CodeTasks, seed: int) -> list[Task] | TaskSet:
    """Returns the problems of the settings' rows, or the project's own if there are none."""
    if not settings.rows:
        return own_tasks(settings, seed)
    return read_tasks(settings, seed, environment="code", fields=FIELDS, problem_of=problem_of)


def check_task(task: Task) -> None:
    """Raises ValueError unless the task's ground truth is a programming problem.

    Raises ConfigError where nothing can be judged: better before a stage plays than at its first solution.
    """
    Problem.from_text(task.ground_truth)
    shared_sandbox()


def tells_solution(task: Task, text: str) -> bool:
    """Returns whether a text defines the function that is asked for, or says a hidden test."""
    problem = Problem.from_text(task.ground_truth)
    squeezed = "".join(text.split())
    hidden = [call_text(problem.entry_point, example) for example in problem.hidden]
    hidden += [line for line in problem.program.splitlines() if "assert" in line]
    is_defined = re.search(rf"\b(?:def\s+{problem.entry_point}\b|{problem.entry_point}\s*=\s*lambda)", text)
    return is_defined is not None or any("".join(call.split()) in squeezed for call in hidden)


CODE = EnvironmentOffer(
    name="code",
    settings=CodeTasks,
    make_tasks=make_tasks,
    make_env=lambda settings, verbosity: CodeEnv(verbosity, settings.reward),  # type: ignore[arg-type]
    styles={
        "plain": lambda added, thinking: PlainStyle(added),
        "full": lambda added, thinking: FullStyle((), added, thinking=thinking),
    },
    splitter="lines",
    check_task=check_task,
    max_steps=lambda settings: MESSAGE_LINES,
    demonstrators=Demonstrators(scripted.SHARES, scripted.demonstrate, after_feedback="careful"),
    scripted=ScriptedAgent(scripted.reply, scripted.DIGEST),
    gives_away=tells_solution,
)
