"""What an environment makes and opens, before it counts: a later stage would trip over it, or learn wrongly.

Each check returns what is wrong in words, with what is allowed, or "".
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from env.checks import is_json, messages_problem, opening_problem
from env.protocol import Env
from pipeline.rows import shown
from pipeline.types import Message, Task

NEEDED = ("train", "val")
"""Splits that the stages ask every environment for; a test split may have no task."""
KEYS = ("role", "content")
"""Of a task's messages: a task is stored with these alone."""
_TEXTS = ("task_id", "data_source", "split", "style", "ground_truth", "ability", "cluster")
_NEVER_EMPTY = ("task_id", "cluster")
_LEAST = {"level": 1, "index": 0}
_MOST = 2**31 - 1  # of the table's integers


def tasks_problem(tasks: Sequence[Any], splits: Sequence[str], *, val_shares_clusters: bool = False) -> str:
    """Checks a whole list of tasks: each by itself, their ids, the splits they are of, and their clusters.

    A cluster is what a critic could know by heart, so a test split shares none with train and val, and val
    none with train unless `val_shares_clusters` says so.
    """
    numbers = dict[str, int]()  # task_id -> which task has it
    for number, task in enumerate(tasks, start=1):
        if not isinstance(task, Task):
            return f"item {number} is {shown(task)}; allowed: pipeline.types.Task"
        if problem := _task_problem(task, splits):
            return f"task {number}, {shown(task.task_id)}: {problem}"
        if (first := numbers.setdefault(task.task_id, number)) != number:
            return f"tasks {first} and {number} have one task_id, {task.task_id!r}; allowed: each its own"
    if missing := [split for split in NEEDED if all(task.split != split for task in tasks)]:
        return f"no task of {len(tasks)} is of {' or '.join(missing)}; allowed: at least one of each"
    named = {(task.split, task.cluster): task.task_id for task in tasks}
    apart_from = {"train": (), "val": () if val_shares_clusters else ("train",)}
    for task in tasks:
        for other in apart_from.get(task.split, NEEDED):
            if (other, task.cluster) in named:
                return (
                    f"task {task.task_id!r} of {task.split} has the cluster {shown(task.cluster)}, as has "
                    f"{named[other, task.cluster]!r} of {other}; allowed: clusters that {other} does not have"
                    + (", or val_shares_clusters=True in the offer" if task.split == "val" else "")
                )
    return ""


def _task_problem(task: Task, splits: Sequence[str]) -> str:
    for name in _TEXTS:
        value = getattr(task, name)
        if not isinstance(value, str) or not is_json(value):
            return f"{name} is {shown(value)}; allowed: Unicode text"
        if name in _NEVER_EMPTY and not value.strip():
            return f"{name} is {value!r}; allowed: a text that says something"
    for name, least in _LEAST.items():
        value = getattr(task, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= _MOST:
            return f"{name} is {shown(value)}; allowed: a whole number from {least}"
    if task.split not in splits:
        return f"split is {task.split!r}; allowed: {', '.join(splits)}, the splits of the offer"
    if not isinstance(task.details, dict) or not is_json(task.details):
        return f"details are {shown(task.details)}; allowed: a dict that JSON can hold, without NaN"
    if problem := messages_problem(task.prompt) or _nothing_said(task.prompt):
        return f"prompt: {problem}"
    extra = sorted({key for message in task.prompt for key in message} - {*KEYS})
    return f"prompt: a message has {', '.join(extra)}; allowed: {', '.join(KEYS)}" if extra else ""


def _nothing_said(messages: Sequence[Message]) -> str:
    says = any(message["content"].strip() for message in messages)
    return "" if says else f"it says nothing: {shown(messages)}; allowed: a message with content"


def replay_problem(env: Env, task: Task) -> str:
    """Checks what `reset` gives for a task, and that it gives the same again: replay is the snapshot."""
    opened: list[Any] = [env.reset(task, 0), env.reset(task, 0)]
    for opening in opened:
        if problem := opening_problem(opening) or _nothing_said(opening.messages):
            return f"what reset gives cannot be used: {problem}"
    first, again = ([f"{m['role']}: {m['content']}" for m in found.messages] for found in opened)
    if first == again:
        return ""
    said, other = next(
        ((one, two) for one, two in zip(first, again, strict=False) if one != two),
        (f"{len(first)} messages", f"{len(again)} messages"),
    )
    return (
        f"the environment draws at random: reset with one seed gives {_from_where(said, other)}, then "
        f"{_from_where(other, said)}; allowed: the same each time"
    )


def _from_where(text: str, other: str) -> str:
    """Returns a text from shortly before the place where it differs from another."""
    pairs = zip(text, other, strict=False)
    same = next((i for i, (one, two) in enumerate(pairs) if one != two), min(len(text), len(other)))
    return shown(text[max(0, same - 20) :])
