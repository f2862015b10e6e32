"""Rows of the main tables: dataclasses to Arrow and back. `columns.py` says what each column means."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.columns import (
    LABELS,
    LOOKS,
    PAIRS,
    REFERENCE,
    ROLLOUTS,
    STEPS,
    TASKS,
    UPDATES,
    VALUES,
    columns_of,
)
from pipeline.schema import TableSpec, table_of
from pipeline.types import Answer, Event, Label, Message, Pair, Rollout, Step, Task


def tasks_table(tasks: Sequence[Task]) -> pa.Table:
    """Returns the tasks table. Raises ValueError for a message with other keys than role and content."""
    for task in tasks:
        for message in task.prompt:
            if set(message) != {"role", "content"}:
                raise ValueError(
                    f"task {task.task_id}: prompt message has keys {sorted(message)}; allowed: role, content"
                )
    nested: dict[str, list[Any]] = {
        "reward_model": [{"style": t.style, "ground_truth": t.ground_truth} for t in tasks],
        "extra_info": [
            {"split": t.split, "index": t.index, "cluster": t.cluster, "details": _json(t.details)}
            for t in tasks
        ],
    }
    return _table(TASKS, tasks, **nested)


def tasks_from(table: pa.Table) -> list[Task]:
    """Returns the tasks of a tasks table, in its order."""
    return [task_from(row) for row in table.to_pylist()]


def task_from(row: Mapping[str, Any]) -> Task:
    """Returns the task of one row of a tasks table; further columns are passed over."""
    return Task(
        task_id=row["task_id"],
        data_source=row["data_source"],
        split=row["split"],
        level=row["level"],
        prompt=tuple(row["prompt"]),
        style=row["reward_model"]["style"],
        ground_truth=row["reward_model"]["ground_truth"],
        ability=row["ability"],
        cluster=row["extra_info"]["cluster"],
        index=row["extra_info"]["index"],
        details=json.loads(row["extra_info"]["details"]),
    )


_NUMBERS = ("prompt_token_ids", "response_token_ids", "loss_mask", "logprobs")


def rollouts_table(rollouts: Iterable[Rollout]) -> pa.Table:
    """Returns the rollouts table, without the steps (see `steps_table`).

    Raises ValueError if lengths of tokens, mask and log-probabilities differ, a mask is not 0 or 1, a
    log-probability is given where nothing was sampled, or a message has unknown keys.
    """
    rollouts = list(rollouts)
    for rollout in rollouts:
        _check_rollout(rollout)
    return _table(
        ROLLOUTS,
        rollouts,
        messages=[[_message_row(m, r.rollout_id) for m in r.messages] for r in rollouts],
        events=[[dataclasses.asdict(event) for event in r.events] for r in rollouts],
        loss_mask=[[int(bit) for bit in r.loss_mask] for r in rollouts],
        logprobs=[r.logprobs if r.has_logprobs else () for r in rollouts],
    )


def steps_table(rollouts: Iterable[Rollout]) -> pa.Table:
    """Returns the steps of rollouts, rollout after rollout."""
    pairs = [(r.rollout_id, step) for r in rollouts for step in r.steps]
    return _table(STEPS, [step for _, step in pairs], rollout_id=[rollout_id for rollout_id, _ in pairs])


def rollouts_from(rollouts: pa.Table, steps: pa.Table) -> list[Rollout]:
    """Returns the rollouts of a table, in its order, with their steps by index; other steps are ignored."""
    by_rollout: dict[str, list[Step]] = {}
    for row in steps.to_pylist():
        by_rollout.setdefault(row.pop("rollout_id"), []).append(Step(**row))
    data: dict[str, Sequence[Any]] = {
        name: _lists(rollouts.column(name)) if name in _NUMBERS else rollouts.column(name).to_pylist()
        for name in ROLLOUTS.schema.names
    }
    result = []
    for index in range(rollouts.num_rows):
        row = {name: column[index] for name, column in data.items()}
        row |= {name: tuple(row[name]) for name in (*_NUMBERS, "parent_rollout_ids")}
        if row["kind"] == "recorded":
            row["logprobs"] = tuple(math.nan if sampled else 0.0 for sampled in row["loss_mask"])
        row["messages"] = tuple(message_from(m) for m in row["messages"])
        row["events"] = tuple(Event(**{**event, "fields": tuple(event["fields"])}) for event in row["events"])
        mine = sorted(by_rollout.get(row["rollout_id"], []), key=lambda step: step.step_index)
        result.append(Rollout(**row, steps=tuple(mine)))
    return result


def labels_table(labels: Sequence[Label]) -> pa.Table:
    """Returns the labels table."""
    return _table(LABELS, labels)


def labels_from(table: pa.Table) -> list[Label]:
    """Returns the labels of a table, in its order."""
    return [Label(**row) for row in table.to_pylist()]


def values_table(rows: Sequence[tuple[str, int, str, str, float]]) -> pa.Table:
    """Returns the values table from rows of (rollout_id, step_index, context, critic, value)."""
    return _table_of_tuples(VALUES, rows)


def values_from(table: pa.Table) -> dict[str, np.ndarray]:
    """Returns rollout_id -> [T] the values of a table that holds one critic's."""
    found: dict[str, list[float]] = {}
    for row in table.select(["rollout_id", "value"]).to_pylist():
        found.setdefault(row["rollout_id"], []).append(row["value"])
    return {rollout_id: np.array(values) for rollout_id, values in found.items()}


def updates_table(rows: Sequence[tuple[str, int, float, np.ndarray | None, np.ndarray | None]]) -> pa.Table:
    """Returns the updates table from rows of (rollout_id, update, token_weight, old and ref logprobs)."""
    return _table_of_tuples(UPDATES, rows)


def looks_table(rollouts: Sequence[Rollout]) -> pa.Table:
    """Returns the looks table of some looks' rollouts."""
    return _table(LOOKS, rollouts)


_SIDES = ("chosen", "rejected")
_OF_ANSWER = tuple(field.name for field in dataclasses.fields(Answer))


def pairs_table(pairs: Sequence[Pair]) -> pa.Table:
    """Returns the pairs table; raises ValueError for an answer whose mask does not fit or trains nothing."""
    for pair in pairs:
        for side in (pair.chosen, pair.rejected):
            tokens, mask = len(side.response_token_ids), side.loss_mask
            if len(mask) != tokens or not 0 < sum(mask) <= tokens:
                raise ValueError(
                    f"pair {pair.pair_id}: answer {side.answer_id} has {tokens} tokens and a loss_mask of "
                    f"{len(mask)}, {sum(mask)} of them 1; allowed: as many, and at least one 1"
                )
    sides = {
        f"{side}_{name}": [getattr(getattr(pair, side), name) for pair in pairs]
        for side in _SIDES
        for name in _OF_ANSWER
    }
    return _table(PAIRS, pairs, **sides)


def pairs_from(table: pa.Table) -> list[Pair]:
    """Returns the pairs of a table, in its order."""
    data: dict[str, Sequence[Any]] = {
        name: [tuple(numbers) for numbers in _lists(table.column(name))]
        if pa.types.is_list(table.schema.field(name).type)
        else table.column(name).to_pylist()
        for name in PAIRS.schema.names
    }
    own = [column.name for column in columns_of(Pair)]

    def answer(side: str, index: int) -> Answer:
        return Answer(**{name: data[f"{side}_{name}"][index] for name in _OF_ANSWER})

    return [
        Pair(
            **{name: data[name][index] for name in own},
            chosen=answer("chosen", index),
            rejected=answer("rejected", index),
        )
        for index in range(table.num_rows)
    ]


def reference_table(rows: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> pa.Table:
    """Returns the reference table from rows of (pair_id, log-probabilities of chosen and rejected answer)."""
    return _table_of_tuples(REFERENCE, rows)


def reference_from(table: pa.Table) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns pair_id -> log-probabilities of its chosen and its rejected answer."""
    names, *sides = (
        table.column("pair_id").to_pylist(),
        *(_lists(table.column(f"{s}_logprobs")) for s in _SIDES),
    )
    rows = zip(names, *sides, strict=True)
    return {name: (np.array(c, np.float32), np.array(r, np.float32)) for name, c, r in rows}


def _table(spec: TableSpec, rows: Sequence[Any], **given: Sequence[Any]) -> pa.Table:
    """Returns a table of rows' attributes, but for the columns that are given."""
    plain = {name: [getattr(row, name) for row in rows] for name in spec.schema.names if name not in given}
    return table_of(spec, plain | given)


def _table_of_tuples(spec: TableSpec, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(spec.columns)
    return table_of(spec, dict(zip(spec.schema.names, columns, strict=True)))


def _check_rollout(rollout: Rollout) -> None:
    sizes = {n: len(getattr(rollout, n)) for n in ("response_token_ids", "loss_mask", "logprobs")}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"rollout {rollout.rollout_id}: lengths differ: {sizes}")
    if not set(rollout.loss_mask) <= {0, 1}:
        raise ValueError(
            f"rollout {rollout.rollout_id}: loss_mask holds {sorted(set(rollout.loss_mask))}; allowed: 0, 1"
        )
    for index, (bit, logprob) in enumerate(zip(rollout.loss_mask, rollout.logprobs, strict=True)):
        if not bit and logprob != 0.0:
            raise ValueError(
                f"rollout {rollout.rollout_id}: token {index} was not sampled, yet its logprob is {logprob}"
            )


MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id")
"""What is stored of a message."""


def _message_row(message: Message, rollout_id: str) -> dict[str, Any]:
    if not {"role"} <= set(message) <= set(MESSAGE_KEYS):
        raise ValueError(
            f"rollout {rollout_id}: message has keys {sorted(message)}; allowed: {', '.join(MESSAGE_KEYS)}"
        )
    row = {key: message.get(key) for key in MESSAGE_KEYS}
    row["tool_calls"] = None if row["tool_calls"] is None else _json(row["tool_calls"])
    return row


def message_from(row: Mapping[str, Any]) -> Message:
    """Returns the message of a row's `messages`, its calls as a list."""
    message: Message = {"role": row["role"], "content": row["content"]}
    if row["tool_calls"] is not None:
        message["tool_calls"] = json.loads(row["tool_calls"])
    if row["tool_call_id"] is not None:
        message["tool_call_id"] = row["tool_call_id"]
    return message


def _json(value: Any) -> str:
    # Not sorted: the order of a call's arguments is part of what was said.
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lists(column: pa.ChunkedArray) -> list[list[Any]]:
    """Returns a list column as python lists; many times faster than `to_pylist`."""
    found: list[list[Any]] = []
    for lists in column.chunks:
        values = lists.flatten().to_numpy(zero_copy_only=False).tolist()
        ends = np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False)).tolist()
        found += [values[start:end] for start, end in itertools.pairwise([0, *ends])]
    return found
