"""Solutions that people bring, and whole sessions: each of a task that is known, perhaps with its reward.

Solutions may be cut into steps, with the place of the first wrong one: verifiers and critics are held against
it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env.row_splits import words_of
from env.sessions import Session, opening_words, session_of
from pipeline.errors import ConfigError
from pipeline.ids import digest
from pipeline.rows import (
    BadRowError,
    Field,
    LeftOut,
    Row,
    Source,
    Table,
    columns_in,
    is_missing,
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
SESSION = {
    "messages": Field(("messages", "conversation")),
    "task": Field(("task_id", "task"), required=False),
    "session": Field(("session_id",), required=False),
    "guided": Field(("guided",), required=False),
    "reward": REWARD,
}
SOLUTION = {"task": TASK, "text": Field(("text", "solution", "response", "completion")), "reward": REWARD}
STEPS = {"task": TASK, "steps": Field(("steps",)), "label": Field(("label",)), "reward": REWARD}
"""field -> where it is looked for; the columns of steps are those of ProcessBench (arXiv:2412.06559)."""
Key = tuple[str, str]
"""What two rows that count once have in common: task and words, or "" and the id of a session."""


class Solutions(Source):
    """Where solutions are: `path.jsonl` alone is short for `{source: path.jsonl}`."""

    columns: dict[str, str] = setting(
        {},
        "field -> column: task, text (or messages, session; or steps, label), reward; by default as usual "
        "data sets name them",
    )


@dataclass(frozen=True, slots=True)
class Solution:
    """One message that solves a task or fails to, or a whole session that does, whose text is empty."""

    row: Row
    task: Task
    text: str
    reward: float | None  # as recorded; None: the environment's grader decides
    borders: tuple[int, ...] | None = None  # characters at which its second and later steps begin
    first_wrong: int | None = None  # which of those steps is the first wrong one; None: none is
    session: Session | None = None

    @property
    def key(self) -> str:
        """What it says, whole."""
        return self.text if self.session is None else self.session.key


def read_solutions(
    source: Solutions, tasks: Iterable[Task], *, others: bool = False
) -> tuple[list[Solution], list[LeftOut]]:
    """Returns the solutions or sessions of a source in order, and the rows that are none, with reasons.

    Rows with a column `messages` are sessions. A row names its task by id, or by the words of its prompt.
    Those of a task that is held out are left out; with `others` sessions of tasks that nobody knows count,
    each by what it opens with. Raises ConfigError if no row is a solution.
    """
    known, named, usual = tasks_by_name(tasks), source.columns, SESSION["messages"].columns
    fields = SOLUTION if "text" in named and "messages" not in named else {**SESSION, **SOLUTION}
    table = read_rows(source, fields, named)
    if "messages" not in named and (
        "text" in named or not any(c in row.values for row in table.rows for c in usual)
    ):
        return _read(source, table, SOLUTION, lambda row, values: _solution(row, values, known))
    return _read(source, table, SESSION, lambda row, values: _session(row, values, known, others))


def read_labelled(source: Solutions, tasks: Iterable[Task]) -> tuple[list[Solution], list[LeftOut]]:
    """Returns solutions in steps with the place of the first wrong one; else as `read_solutions`."""
    known = tasks_by_name(tasks)

    def labelled(row: Row, values: Mapping[str, Any]) -> tuple[Solution, Key]:
        task = task_of(values["task"], known)
        text, borders, first_wrong = _labelled(values)
        solution = Solution(row, task, text, _reward(values["reward"]), borders, first_wrong)
        return solution, (task.task_id, text)

    return _read(source, read_rows(source, STEPS, source.columns), STEPS, labelled)


def _read(
    source: Solutions,
    table: Table,
    fields: Mapping[str, Field],
    solution_of: Callable[[Row, Mapping[str, Any]], tuple[Solution, Key]],
) -> tuple[list[Solution], list[LeftOut]]:
    """Returns what rows are, and those that are none; `solution_of` also says what makes two the same."""
    columns, left_out = columns_in(table, fields, source.columns), table.left_out
    found = dict[Key, Solution]()
    for row in table.rows:
        try:
            place = row._replace(values={})  # what a solution keeps of it
            solution, key = solution_of(place, values_of(row, columns, fields))
            if other := found.get(key):
                same = "says the same as" if key[0] else f"has the session_id {key[1]!r} of"
                raise BadRowError("duplicate", f"{same} row {other.row.number}")
            found[key] = solution
        except BadRowError as error:
            left_out.append(row.left_out(error))
    if not found:
        raise ConfigError(
            f"{source.label}: none of {len(left_out)} rows is a solution of a task of this run "
            f"({reasons(left_out)}). Next: solutions of its tasks, or other columns; used were {columns}"
        )
    return list(found.values()), left_out


def _solution(row: Row, values: Mapping[str, Any], known: Mapping[str, Task | None]) -> tuple[Solution, Key]:
    task, text = _to_learn(task_of(values["task"], known)), _message(values)
    return Solution(row, task, text, _reward(values["reward"])), (task.task_id, text)


def _to_learn(task: Task) -> Task:
    if task.split != "train":
        raise BadRowError(
            "held_out", f"its task {task.task_id} is of {task.split}: nothing may learn from it"
        )
    return task


def _session(
    row: Row, values: Mapping[str, Any], known: Mapping[str, Task | None], others: bool
) -> tuple[Solution, Key]:
    """Returns a session; of two with one `session_id` the second is a duplicate, whatever it says.

    An agent may well say the same twice, so sessions with ids are told apart by these alone.
    """
    if values["guided"]:
        raise BadRowError("guided", "it was prompted with feedback that its messages do not hold")
    session = session_of(values["messages"])
    said = [words_of(messages) for messages in (session.opening, opening_words(session.opening))]
    if (given := values["task"]) is not None and normal_text(str(given)) in known:
        task = task_of(given, known)
        if not names_of(task) & set(said):
            raise BadRowError("other_prompt", f"it opens otherwise than its task {task.task_id}")
    elif name := next((words for words in said if words in known), None):
        task = task_of(name, known)
    elif others:
        name = digest("session", said[0])
        task = Task(name, "sessions", "train", 1, session.opening, "none", "", "session", name, 0)
    else:
        raise BadRowError("no_task", f"unknown here, or held out: {shown(said[1])}")
    solution = Solution(row, _to_learn(task), "", _reward(values["reward"]), session=session)
    name = values["session"]
    return solution, (task.task_id, session.key) if is_missing(name) else ("", str(name))


def names_of(task: Task) -> set[str]:
    """Returns what a row may call a task: its id, words of its prompt or its user, what its row asked."""
    said = {words_of(task.prompt), words_of(opening_words(task.prompt))}
    return {task.task_id, *said, normal_text(task.details.get("asked", ""))} - {""}


def tasks_by_name(tasks: Iterable[Task]) -> dict[str, Task | None]:
    """Returns a task by each of its names; None where several have it.

    Multiple-choice questions may ask the same and have other choices.
    """
    known: dict[str, Task | None] = {}
    for task in tasks:
        for name in names_of(task):
            known[name] = None if name in known else task
    return known


def task_of(value: Any, known: Mapping[str, Task | None]) -> Task:
    """Returns the task that a row names, by id or by the words of its prompt; raises BadRowError for none."""
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
