"""Preferences that people bring: two answers to a task that is known, of which one is preferred."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from env.row_splits import words_of
from env.sessions import opening_words
from env.solutions import TASK, Solution, names_of, task_of, tasks_by_name
from pipeline.errors import ConfigError
from pipeline.rows import (
    BadRowError,
    Field,
    LeftOut,
    Source,
    columns_in,
    read_rows,
    reasons,
    shown,
    text_of,
    values_of,
)
from pipeline.settings import setting
from pipeline.types import Task

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
    known = tasks_by_name(tasks)
    table = read_rows(source, PREFERENCE, source.columns)
    columns, left_out = columns_in(table, PREFERENCE, source.columns), table.left_out
    found = dict[Any, tuple[Solution, Solution]]()
    for row in table.rows:
        try:
            values, place = values_of(row, columns, PREFERENCE), row._replace(values={})
            task, scores = task_of(values["task"], known), _scores(values)
            texts = [_answer(values, side, task) for side in ("chosen", "rejected")]
            if texts[0] == texts[1]:
                raise BadRowError("same_answer", "chosen and rejected say the same")
            if other := found.get((task.task_id, *texts)):
                raise BadRowError("duplicate", f"says the same as row {other[0].row.number}")
            chosen, rejected = (Solution(place, task, t, s) for t, s in zip(texts, scores, strict=True))
            found[(task.task_id, *texts)] = chosen, rejected
        except BadRowError as error:
            left_out.append(row.left_out(error))
    if not found:
        raise ConfigError(
            f"{source.label}: none of {len(left_out)} rows is a preference between answers to a task of this "
            f"run ({reasons(left_out)}). Next: preferences on its tasks, or other columns than {columns}"
        )
    return list(found.values()), left_out


def _answer(values: Mapping[str, Any], side: str, task: Task) -> str:
    """Returns the text of one side of a preference; of a dialogue, as TRL has it, what was said last.

    Before that may stand the task's prompt and nothing else: an answer to other words would become one to
    this prompt.
    """
    said = values[side]
    if not isinstance(said, list) or not said or not all(isinstance(m, dict) and "role" in m for m in said):
        return text_of(values, side)
    *before, last = said
    if last["role"] != "assistant":
        return text_of(values, side)
    own = [message["role"] for message in task.prompt]  # which may show how others answered
    if any(m["role"] in ("assistant", "tool") and m["role"] not in own for m in before):
        raise BadRowError("several_turns", f"{side} is a dialogue of several turns; allowed: one answer")
    if before:
        is_text = all(isinstance(message.get("content"), str) for message in before)
        opens = {words_of(before), words_of(opening_words(before))} if is_text else set[str]()
        if not opens & names_of(task):
            raise BadRowError("other_prompt", f"{side} opens otherwise than its task {task.task_id}")
    return text_of({side: last.get("content")}, side)


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
