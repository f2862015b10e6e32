"""Solutions that people bring: each of a task that is known, with its text and perhaps its reward.

They may be cut into steps, with the place of the first wrong one: verifiers and critics are held against it.
Or two are of one task, and one is preferred.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from env.row_splits import words_of
from pipeline.errors import ConfigError
from pipeline.rows import (
    BadRowError,
    Field,
    LeftOut,
    Row,
    Source,
    columns_in,
    normal_text,
    read_rows,
    reasons,
    shown,
    text_of,
    values_of,
)
from pipeline.settings import setting
from pipeline.types import Task

TASK = Field(("task_id", "task", "prompt", "question", "problem"))
REWARD = Field(("reward", "correct", "is_correct", "score", "final_answer_correct"), required=False)
SOLUTION = {"task": TASK, "text": Field(("text", "solution", "response", "completion")), "reward": REWARD}
STEPS = {"task": TASK, "steps": Field(("steps",)), "label": Field(("label",)), "reward": REWARD}
"""field -> where it is looked for; the columns of steps are those of ProcessBench (arXiv:2412.06559)."""


class Solutions(Source):
    """Where solutions are: `path.jsonl` alone is short for `{source: path.jsonl}`."""

    columns: dict[str, str] = setting(
        {},
        "field -> column: task, text (or steps, label), reward; by default as usual data sets name them",
    )


@dataclass(frozen=True, slots=True)
class Solution:
    """One message that solves a task or fails to."""

    row: Row
    task: Task
    text: str
    reward: float | None  # as recorded; None: the environment's grader decides
    borders: tuple[int, ...] | None = None  # characters at which its second and later steps begin
    first_wrong: int | None = None  # which of those steps is the first wrong one; None: none is


def read_solutions(source: Solutions, tasks: Iterable[Task]) -> tuple[list[Solution], list[LeftOut]]:
    """Returns the solutions of a source in order, and the rows that are none, with reasons.

    A row names its task by id, or by the words of its prompt. Raises ConfigError if no row is a solution.
    """
    return _read(source, SOLUTION, tasks, lambda values: (_message(values), None, None))


def read_labelled(source: Solutions, tasks: Iterable[Task]) -> tuple[list[Solution], list[LeftOut]]:
    """Returns solutions in steps with the place of the first wrong one; else as `read_solutions`."""
    return _read(source, STEPS, tasks, _labelled)


def _read(
    source: Solutions,
    fields: Mapping[str, Field],
    tasks: Iterable[Task],
    said_of: Callable[[Mapping[str, Any]], tuple[str, tuple[int, ...] | None, int | None]],
) -> tuple[list[Solution], list[LeftOut]]:
    known = _by_name(tasks)
    rows, left_out = read_rows(source)
    columns, found = columns_in(rows, fields, source.columns), dict[tuple[str, str], Solution]()
    for row in rows:
        try:
            values = values_of(row, columns, fields)
            task = _task_of(values["task"], known)
            text, borders, first_wrong = said_of(values)
            reward = _reward(values["reward"])
            solution = Solution(row, task, text, reward, borders, first_wrong)
            if other := found.get((task.task_id, text)):
                raise BadRowError("duplicate", f"says the same as row {other.row.number}")
            found[task.task_id, text] = solution
        except BadRowError as error:
            left_out.append(LeftOut(row.source, row.number, error.kind, str(error)))
    if not found:
        raise ConfigError(
            f"{source.label}: none of {len(left_out)} rows is a solution of a task of this run "
            f"({reasons(left_out)}). Next: solutions of its tasks, or other columns; used were {columns}"
        )
    return list(found.values()), left_out


def _by_name(tasks: Iterable[Task]) -> dict[str, Task | None]:
    """Returns a task by its id, by the words of its prompt, by what its row asked; None where several are.

    Multiple-choice questions may ask the same and have other choices.
    """
    known: dict[str, Task | None] = {}
    for task in tasks:
        asked = normal_text(task.details.get("asked", ""))
        for name in {task.task_id, words_of(task.prompt), asked} - {""}:
            known[name] = None if name in known else task
    return known


def _task_of(value: Any, known: Mapping[str, Task | None]) -> Task:
    is_dialogue = isinstance(value, list) and all(
        isinstance(message, dict) and isinstance(message.get("content"), str) for message in value
    )
    name = words_of(value) if is_dialogue else normal_text(str(value))
    if name not in known:
        raise BadRowError("no_task", f"unknown here, or held out: {shown(value)}")
    if (task := known[name]) is None:
        raise BadRowError("several_tasks", f"several tasks ask {shown(value)}; name one by its task_id")
    return task


def _message(values: Mapping[str, Any]) -> str:
    """Returns the text of a row; a completion may be a list of one message, as TRL has it."""
    said = values["text"]
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], dict):
        return text_of({"text": said[0].get("content")}, "text")
    return text_of(values, "text")


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise BadRowError("bad_reward", f"reward is {shown(value)}; allowed: true, false, or 0 to 1")
    return float(value)


def _labelled(values: Mapping[str, Any]) -> tuple[str, tuple[int, ...], int | None]:
    steps, label = values["steps"], values["label"]
    if not isinstance(steps, list) or not steps or not all(isinstance(s, str) and s.strip() for s in steps):
        raise BadRowError("bad_steps", f"steps are {shown(steps)}; allowed: texts that say something")
    if isinstance(label, bool) or not isinstance(label, int) or not -1 <= label < len(steps):
        raise BadRowError(
            "bad_label", f"label is {shown(label)}; allowed: -1, or a step from 0 to {len(steps) - 1}"
        )
    text, borders = joined_steps(steps)
    return text, borders, None if label < 0 else label


def joined_steps(steps: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    r"""Returns steps as one text, each on lines of its own, and where its second and later steps begin.

    Example:
        >>> joined_steps(["1 + 1 = 2", "2 + 1 = 3\n", "So 3"])
        ('1 + 1 = 2\n2 + 1 = 3\nSo 3', (10, 20))
    """
    lines = [step if step.endswith("\n") else f"{step}\n" for step in steps[:-1]]
    borders = tuple(sum(map(len, lines[:i])) for i in range(1, len(lines) + 1))
    return "".join([*lines, steps[-1]]), borders


PREFERENCE = {
    "task": TASK,
    "chosen": Field(("chosen",)),
    "rejected": Field(("rejected",)),
    "chosen_score": Field(("score_chosen", "chosen_score", "chosen_reward"), required=False),
    "rejected_score": Field(("score_rejected", "rejected_score", "rejected_reward"), required=False),
}


class Preferred(Source):
    """Where preferences are: `path.jsonl` alone is short for `{source: path.jsonl}`."""

    columns: dict[str, str] = setting(
        {},
        "field -> column: task, chosen, rejected, chosen_score, rejected_score; by default as usual data "
        "sets name them",
    )


def read_preferences(
    source: Preferred, tasks: Iterable[Task]
) -> tuple[list[tuple[Solution, Solution]], list[LeftOut]]:
    """Returns (chosen, rejected) of each row in order, and the rows that are none, with reasons.

    Rewards are the recorded scores, of any size, or 1 and 0. A row names its task as a solution's does.
    Raises ConfigError if no row is a preference.
    """
    known = _by_name(tasks)
    rows, left_out = read_rows(source)
    columns, found = columns_in(rows, PREFERENCE, source.columns), dict[Any, tuple[Solution, Solution]]()
    for row in rows:
        try:
            values = values_of(row, columns, PREFERENCE)
            task, scores = _task_of(values["task"], known), _scores(values)
            texts = [_last_message(values, side) for side in ("chosen", "rejected")]
            if texts[0] == texts[1]:
                raise BadRowError("same_answer", "chosen and rejected say the same")
            if other := found.get((task.task_id, *texts)):
                raise BadRowError("duplicate", f"says the same as row {other[0].row.number}")
            chosen, rejected = (Solution(row, task, t, s) for t, s in zip(texts, scores, strict=True))
            found[(task.task_id, *texts)] = chosen, rejected
        except BadRowError as error:
            left_out.append(LeftOut(row.source, row.number, error.kind, str(error)))
    if not found:
        raise ConfigError(
            f"{source.label}: none of {len(left_out)} rows is a preference between answers to a task of this "
            f"run ({reasons(left_out)}). Next: preferences on its tasks, or other columns than {columns}"
        )
    return list(found.values()), left_out


def _last_message(values: Mapping[str, Any], side: str) -> str:
    """Returns the text of one side of a preference; of a dialogue, as TRL has it, what was said last."""
    said = values[side]
    if isinstance(said, list) and said and isinstance(said[-1], dict) and said[-1].get("role") == "assistant":
        return text_of({side: said[-1].get("content")}, side)
    return text_of(values, side)


def _scores(values: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the rewards of chosen and rejected, 1 and 0 where a row has none."""
    given = values["chosen_score"], values["rejected_score"]
    if given == (None, None):
        return 1.0, 0.0
    for score in given:
        if isinstance(score, bool) or not isinstance(score, int | float) or not isfinite(score):
            raise BadRowError("bad_score", f"scores are {shown(given)}; allowed: two numbers, or none")
    chosen, rejected = float(given[0]), float(given[1])
    if chosen <= rejected:
        raise BadRowError("no_margin", f"chosen has the score {chosen:g}, rejected {rejected:g}")
    return chosen, rejected
