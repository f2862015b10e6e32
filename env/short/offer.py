"""What questions with short answers offer to the stages: rows to tasks, one message, no word on steps."""

from collections.abc import Sequence
from random import Random

from env.chat.full import FullStyle
from env.chat.plain import PlainStyle
from env.chat.style import ChatStyle
from env.offer import Demonstrators, EnvironmentOffer, TaskSet
from env.protocol import Action
from env.short.answers import LETTERS, AnswerKey
from env.short.environment import ShortAnswers
from env.short.leaks import tells_answer
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
