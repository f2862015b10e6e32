"""What questions with short answers offer to the stages: rows to tasks, one message, no word on steps."""

import re
from collections.abc import Sequence
from random import Random

from env.chat.full import FullStyle
from env.chat.plain import PlainStyle
from env.chat.style import ChatStyle
from env.offer import Demonstrators, EnvironmentOffer, TaskSet
from env.protocol import Action
from env.short.answers import LETTERS, AnswerKey, normal_answer
from env.short.environment import ShortAnswers
from env.short.questions import FIELDS, problem_of
from env.sources import TableTasks, read_tasks
from pipeline.types import Task

MESSAGE_LINES = 4
"""Of a message that thinks before it answers, for `vdapo plan` (start value); a line is a step."""


def make_tasks(settings: TableTasks, seed: int) -> TaskSet:
    """Returns the questions of the settings' rows."""
    return read_tasks(settings, seed, environment="short", fields=FIELDS, problem_of=problem_of)


def demonstrate(
    task: Task,
    policy: str,
    seed: int,
    noise: float = 0.0,
    earlier: Sequence[Sequence[Action]] = (),
    style: ChatStyle | None = None,
    thoughts: bool = False,
) -> list[Action]:
    """Returns the right answer, or what a guesser says: any choice, or that it does not know."""
    key = AnswerKey.from_text(task.ground_truth)
    if policy == "knows":
        said = LETTERS[key.right] if key.choices else key.answers[0]
    else:
        said = Random(seed).choice(LETTERS[: len(key.choices)] or ("unknown",))
    return [Action(f"Answer: {said}", "none")]


def check_task(task: Task) -> None:
    """Raises ValueError unless the task's ground truth is a key."""
    AnswerKey.from_text(task.ground_truth)


def tells_answer(task: Task, text: str) -> bool:
    """Returns whether a text says a right answer, or the letter of the right choice as one."""
    key, said = AnswerKey.from_text(task.ground_truth), f" {normal_answer(text)} "
    if any(f" {normal_answer(answer)} " in said for answer in key.answers):
        return True
    letter = LETTERS[key.right]
    named = rf"\b(?:answer|option|choice|choose|pick|select|is|was|be)\W+{letter}\b|\({letter}\)|\b{letter}\)"
    return bool(key.choices) and re.search(named, text) is not None


SHORT = EnvironmentOffer(
    name="short",
    settings=TableTasks,
    make_tasks=make_tasks,
    make_env=lambda settings, verbosity: ShortAnswers(verbosity),
    styles={
        "plain": lambda added, thinking: PlainStyle(added),
        "full": lambda added, thinking: FullStyle((), added, thinking=thinking),
    },
    splitter="lines",
    check_task=check_task,
    max_steps=lambda settings: MESSAGE_LINES,
    demonstrators=Demonstrators({"knows": 0.5, "guesses": 0.5}, demonstrate),
    gives_away=tells_answer,
)
