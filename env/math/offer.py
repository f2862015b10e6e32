"""What math offers to the stages."""

from env.chat.full import FullStyle
from env.chat.plain import PlainStyle
from env.math.answers import MAX_ANSWER
from env.math.environment import MathEnv
from env.math.leaks import tells_answer
from env.math.quantities import quantity
from env.math.scripted import SHARES, demonstrate
from env.math.settings import MathTasks
from env.math.shapes import spelt
from env.math.tasks import make_tasks, practice_tasks
from env.offer import Demonstrators, EnvironmentOffer
from env.sandbox import shared_sandbox
from pipeline.types import Task

FAMILY_LINES = 10
"""Of the longest worked solution."""
ROW_LINES = 20
"""Of a data set's solution (start value): few models write more for gsm8k."""


def check_task(task: Task) -> None:
    """Raises ValueError unless there is an answer that others can be compared with.

    Raises ConfigError where formulas cannot be compared: better before a stage plays than at an answer.
    """
    length = len(task.ground_truth)
    if not task.ground_truth.strip():
        raise ValueError("its ground_truth is empty")
    if length > MAX_ANSWER:
        raise ValueError(
            f"its ground_truth has {length} characters; answers of at most {MAX_ANSWER} are compared"
        )
    if quantity(spelt(task.ground_truth)) is None:
        shared_sandbox()


MATH = EnvironmentOffer(
    name="math",
    settings=MathTasks,
    make_tasks=make_tasks,
    make_env=lambda settings, verbosity: MathEnv(verbosity),  # type: ignore[arg-type]
    styles={
        "plain": lambda added, thinking: PlainStyle(added),
        "full": lambda added, thinking: FullStyle((), added, thinking=thinking),
    },
    splitter="lines",
    check_task=check_task,
    max_steps=lambda settings: ROW_LINES if settings.rows else FAMILY_LINES,
    demonstrators=Demonstrators(SHARES, demonstrate, after_feedback="careful", practice_tasks=practice_tasks),
    step_verdicts=True,
    gives_away=tells_answer,
)
