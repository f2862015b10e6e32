"""The main tables: each column with its type, unit and meaning; dataclasses to Arrow and back.

`vdapo dictionary` renders them as `data/README.md`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from pipeline.schema import (
    Column,
    TableSpec,
    check_table,
    content_digest,
    list_of,
    read_parquet,
    struct_of,
    table_of,
    write_parquet,
)
from pipeline.types import Event, Label, Message, Rollout, RolloutKind, Step, Task

__all__ = [
    "LABELS",
    "ROLLOUTS",
    "SPECS",
    "STEPS",
    "TASKS",
    "UPDATES",
    "VALUES",
    "Column",
    "TableSpec",
    "check_table",
    "content_digest",
    "labels_from",
    "labels_table",
    "read_parquet",
    "rollouts_from",
    "rollouts_table",
    "steps_table",
    "tasks_from",
    "tasks_table",
    "updates_table",
    "values_from",
    "values_table",
    "write_parquet",
]

_text, _int, _float, _flag = pa.string(), pa.int32(), pa.float64(), pa.bool_()
CONTEXTS = ("bare", "guided")

TASKS = TableSpec(
    "tasks",
    "One row per task: a problem with what its grader needs, in verl's columns.",
    (
        Column("task_id", _text, "H of the task's content"),
        Column("data_source", _text, "which generator and grader, e.g. `phone`"),
        Column("split", _text, "`train`, `val`, or a test split such as `test_unseen_company`"),
        Column("level", _int, "difficulty, from 1"),
        Column(
            "prompt",
            list_of(struct_of(role=_text, content=_text)),
            "messages that open the episode, in OpenAI form",
        ),
        Column("ability", _text, "verl's family name of the skill"),
        Column(
            "reward_model",
            struct_of(style=_text, ground_truth=_text),
            "how the answer is graded; `ground_truth` is for the grader alone",
        ),
        Column(
            "extra_info",
            struct_of(split=_text, index=_int, cluster=_text, details=_text),
            "split and place in it; `cluster`, the unit that intervals must not cut; "
            "`details`, a JSON object for analysis, never shown to a policy",
        ),
    ),
    ("task_id",),
)

ROLLOUTS = TableSpec(
    "rollouts",
    "One row per rollout: a graded episode, complete enough to recompute every loss.",
    (
        Column(
            "rollout_id",
            _text,
            "H of group, attempt and draw (a continuation: of parent, step, context, draw)",
        ),
        Column(
            "kind",
            _text,
            "`whole`: played from its prompt; `continuation`: from a state; `sibling`: one of several next "
            "steps from a state, and on; `after_sibling`: a continuation after such a step",
            allowed=get_args(RolloutKind),
        ),
        Column("task_id", _text, "its task"),
        Column("group_id", _text, "the rollouts of one task in one iteration"),
        Column("iteration", _int, "pass of sampling, from 0"),
        Column("attempt", _int, "0-based place in the group's feedback chain"),
        Column("draw", _int, "place among the rollouts of that attempt"),
        Column(
            "parent_rollout_ids",
            list_of(_text),
            "failed rollouts with feedback in the prompt; a continuation's parent",
        ),
        Column("start_step_index", _int, "0, or the step from which a continuation was sampled"),
        Column("guided", _flag, "whether the prompt carries feedback"),
        Column("feedback_in_context", _text, "that feedback as text; empty for a bare prompt"),
        Column(
            "messages",
            list_of(
                struct_of(
                    role=_text, content=(_text, True), tool_calls=(_text, True), tool_call_id=(_text, True)
                )
            ),
            "the whole episode in OpenAI form; `tool_calls` is that list as JSON text, or null",
        ),
        Column("prompt_token_ids", list_of(_int), "everything before the first sampled token", "token ids"),
        Column(
            "response_token_ids",
            list_of(_int),
            "sampled tokens and the environment's replies, as the engine was given them",
            "token ids",
        ),
        Column(
            "loss_mask", list_of(pa.int8()), "1 where the token was sampled by this rollout's policy, else 0"
        ),
        Column(
            "logprobs",
            list_of(pa.float32()),
            "of the behaviour policy at its temperature; 0 where `loss_mask` is 0",
            "nats",
        ),
        Column("temperature", _float, "of sampling; 0 is greedy"),
        Column("top_p", _float, "nucleus; 1 for anything that is trained on"),
        Column("top_k", _int, "-1 (off) for anything that is trained on"),
        Column("max_response_tokens", _int, "budget of the episode, replies included", "tokens"),
        Column("seed", pa.int64(), "seeds sampling and the environment's wording"),
        Column("policy_digest", _text, "weights that sampled it"),
        Column("tokenizer_digest", _text, "tokenizer that encoded it"),
        Column("template_digest", _text, "prompt style that rendered it"),
        Column(
            "finish_reason",
            _text,
            "`success`, `ended` (a message without a call), `max_turns`, `max_tokens`, `failed`",
            allowed=("success", "ended", "max_turns", "max_tokens", "failed"),
        ),
        Column(
            "reward", _float, "the grader's word, in [0, 1]; null when it could not be graded", nullable=True
        ),
        Column("cost", _float, "price of over-collection, probing and other faults, >= 0"),
        Column("env_status", _text, "`ok`, or the kind of failure that was not the policy's"),
        Column(
            "events",
            list_of(struct_of(code=_text, turn=_int, target=_text, fields=list_of(_text), detail=_text)),
            "everything that happened: the single source of feedback, metrics and step verdicts",
        ),
        Column("feedback_text", _text, "what the environment says of this attempt; empty if nothing"),
        Column("feedback_source", _text, "who said it, e.g. `rules/observed`"),
    ),
    ("rollout_id",),
)

STEPS = TableSpec(
    "steps",
    "One row per step, a message of the policy or a part of one: the unit of value and advantage.",
    (
        Column("rollout_id", _text, "its rollout"),
        Column(
            "step_index", _int, "place in the whole rollout; a continuation starts at its `start_step_index`"
        ),
        Column(
            "message_index", _int, "which of the policy's messages it lies in, counted over the whole rollout"
        ),
        Column("token_start", _int, "first token, as an offset into `response_token_ids`", "tokens"),
        Column(
            "token_end", _int, "one past the last; spans tile exactly the tokens with `loss_mask` 1", "tokens"
        ),
        Column("text", _text, "its part of the message as sampled"),
        Column("verifier_status", _text, "`ok`, `wrong` or `unknown`", allowed=("ok", "wrong", "unknown")),
        Column("verifier_code", _text, "event code behind a `wrong`, else empty"),
        Column("verifier_message", _text, "the verdict in words"),
    ),
    ("rollout_id", "step_index"),
)

LABELS = TableSpec(
    "labels",
    "One row per step state in a context: what is known of its value.",
    (
        Column("rollout_id", _text, "rollout the state lies in"),
        Column("step_index", _int, "the state before this step"),
        Column("context", _text, "`bare` or `guided`", allowed=CONTEXTS),
        Column("num_continuations", _int, "fresh samples of the target policy from this state"),
        Column("num_success", _float, "sum of their rewards: how many succeeded, where rewards are 0 or 1"),
        Column(
            "outcome",
            _float,
            "the rollout's own reward where it may label this state, else null",
            nullable=True,
        ),
        Column(
            "target",
            _float,
            "the value the critic is fitted to, in [0, 1]; the reward under `td` and `td_lambda`: "
            "their values are made during the fit",
        ),
        Column(
            "weight",
            _float,
            "n_eff > 0: `num_continuations`, 1 more with an `outcome`, plus kappa; 1 where the rule in "
            "`labels.target` made the target",
            "samples",
        ),
        Column(
            "label_source",
            _text,
            "`continuation`, `outcome`, `recovery` (only the recovery model), or the rule in `labels.target`",
        ),
        Column("label_policy_digest", _text, "the target policy's weights"),
    ),
    ("rollout_id", "step_index", "context"),
)

VALUES = TableSpec(
    "values",
    "One row per step state in a context, and critic.",
    (
        Column("rollout_id", _text, "rollout the state lies in"),
        Column("step_index", _int, "the state before this step"),
        Column("context", _text, "`bare` or `guided`", allowed=CONTEXTS),
        Column(
            "critic",
            _text,
            "digest of the critic; if the actor's watch had recalibrated it, followed by "
            "` slope=a shift=b`: sigmoid(a logit(V) + b)",
        ),
        Column("value", _float, "V(s), in [0, 1] when calibrated"),
    ),
    ("rollout_id", "step_index", "context", "critic"),
)

UPDATES = TableSpec(
    "updates",
    "One row per rollout that an update of the actor trained on: what its loss needs beside other tables.",
    (
        Column("rollout_id", _text, "its rollout"),
        Column("update", _int, "number of the update, from 1, as in `metrics.jsonl`"),
        Column("token_weight", _float, "weight of each of its trainable tokens in the update's loss"),
        Column(
            "old_logprobs",
            list_of(pa.float32()),
            "of the trainer's own policy before the iteration's updates, 0 where `loss_mask` is 0; null: "
            "they are the behaviour policy's, `logprobs`",
            "nats",
            nullable=True,
        ),
        Column(
            "ref_logprobs",
            list_of(pa.float32()),
            "of the starting policy, 0 where `loss_mask` is 0; null: the loss has no KL term",
            "nats",
            nullable=True,
        ),
    ),
    ("rollout_id",),
)

SPECS: dict[str, TableSpec] = {spec.name: spec for spec in (TASKS, ROLLOUTS, STEPS, LABELS, VALUES, UPDATES)}


def tasks_table(tasks: Sequence[Task]) -> pa.Table:
    """Returns the tasks table. Raises ValueError for a message with other keys than role and content."""
    for task in tasks:
        for message in task.prompt:
            if set(message) != {"role", "content"}:
                raise ValueError(
                    f"task {task.task_id}: prompt message has keys {sorted(message)}; allowed: role, content"
                )
    plain = {
        name: [getattr(t, name) for t in tasks]
        for name in ("task_id", "data_source", "split", "level", "ability")
    }
    return table_of(
        TASKS,
        {
            **plain,
            "prompt": [[dict(message) for message in t.prompt] for t in tasks],
            "reward_model": [{"style": t.style, "ground_truth": t.ground_truth} for t in tasks],
            "extra_info": [
                {"split": t.split, "index": t.index, "cluster": t.cluster, "details": _json(t.details)}
                for t in tasks
            ],
        },
    )


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


_ROLLOUT_NUMBERS = ("prompt_token_ids", "response_token_ids", "loss_mask", "logprobs")
_ROLLOUT_TEXTS = ("parent_rollout_ids",)


def rollouts_table(rollouts: Iterable[Rollout]) -> pa.Table:
    """Returns the rollouts table, without the steps (see `steps_table`).

    Raises:
        ValueError: lengths of tokens, mask and log-probabilities differ, a mask is not 0 or 1, a
            log-probability is given where nothing was sampled, or a message has unknown keys.
    """
    rollouts = list(rollouts)
    for rollout in rollouts:
        _check_rollout(rollout)
    columns: dict[str, Any] = {}
    for name in ROLLOUTS.schema.names:
        if name == "messages":
            columns[name] = [[_message_row(m, r.rollout_id) for m in r.messages] for r in rollouts]
        elif name == "events":
            columns[name] = [[dataclasses.asdict(event) for event in r.events] for r in rollouts]
        elif name == "loss_mask":
            columns[name] = [[int(bit) for bit in r.loss_mask] for r in rollouts]
        else:
            columns[name] = [getattr(r, name) for r in rollouts]
    return table_of(ROLLOUTS, columns)


def steps_table(rollouts: Iterable[Rollout]) -> pa.Table:
    """Returns the steps of rollouts, rollout after rollout."""
    pairs = [(r.rollout_id, step) for r in rollouts for step in r.steps]
    names = [name for name in STEPS.schema.names if name != "rollout_id"]
    columns: dict[str, Any] = {name: [getattr(step, name) for _, step in pairs] for name in names}
    return table_of(STEPS, {"rollout_id": [rollout_id for rollout_id, _ in pairs], **columns})


def rollouts_from(rollouts: pa.Table, steps: pa.Table) -> list[Rollout]:
    """Returns the rollouts of a table, in its order, with their steps by index; other steps are ignored."""
    by_rollout: dict[str, list[Step]] = {}
    names = [name for name in STEPS.schema.names if name != "rollout_id"]
    columns = [steps.column(name).to_pylist() for name in names]
    for rollout_id, *values in zip(steps.column("rollout_id").to_pylist(), *columns, strict=True):
        by_rollout.setdefault(rollout_id, []).append(Step(**dict(zip(names, values, strict=True))))
    data: dict[str, Sequence[Any]] = {
        name: _lists(rollouts.column(name)) if name in _ROLLOUT_NUMBERS else rollouts.column(name).to_pylist()
        for name in ROLLOUTS.schema.names
    }
    result = []
    for index in range(rollouts.num_rows):
        row = {name: column[index] for name, column in data.items()}
        row.update({name: tuple(row[name]) for name in (*_ROLLOUT_NUMBERS, *_ROLLOUT_TEXTS)})
        row["messages"] = tuple(_message(m) for m in row["messages"])
        row["events"] = tuple(Event(**{**event, "fields": tuple(event["fields"])}) for event in row["events"])
        mine = sorted(by_rollout.get(row["rollout_id"], []), key=lambda step: step.step_index)
        result.append(Rollout(**row, steps=tuple(mine)))
    return result


def labels_table(labels: Sequence[Label]) -> pa.Table:
    """Returns the labels table."""
    return table_of(
        LABELS, {name: [getattr(label, name) for label in labels] for name in LABELS.schema.names}
    )


def labels_from(table: pa.Table) -> list[Label]:
    """Returns the labels of a table, in its order."""
    return [Label(**row) for row in table.to_pylist()]


def values_table(rows: Sequence[tuple[str, int, str, str, float]]) -> pa.Table:
    """Returns the values table from rows of (rollout_id, step_index, context, critic, value)."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(VALUES.columns)
    return table_of(VALUES, dict(zip(VALUES.schema.names, columns, strict=True)))


def values_from(table: pa.Table) -> dict[str, np.ndarray]:
    """Returns rollout_id -> [T] the values of a table that holds one critic's."""
    found: dict[str, list[float]] = {}
    for rollout_id, value in zip(
        *(table.column(n).to_pylist() for n in ("rollout_id", "value")), strict=True
    ):
        found.setdefault(rollout_id, []).append(value)
    return {rollout_id: np.array(values) for rollout_id, values in found.items()}


def updates_table(rows: Sequence[tuple[str, int, float, np.ndarray | None, np.ndarray | None]]) -> pa.Table:
    """Returns the updates table from rows of (rollout_id, update, token_weight, old and ref logprobs)."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(UPDATES.columns)
    return table_of(UPDATES, dict(zip(UPDATES.schema.names, columns, strict=True)))


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


_MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id")


def _message_row(message: Message, rollout_id: str) -> dict[str, Any]:
    if not {"role"} <= set(message) <= set(_MESSAGE_KEYS):
        raise ValueError(
            f"rollout {rollout_id}: message has keys {sorted(message)}; allowed: {', '.join(_MESSAGE_KEYS)}"
        )
    row = {key: message.get(key) for key in _MESSAGE_KEYS}
    row["tool_calls"] = None if row["tool_calls"] is None else _json(row["tool_calls"])
    return row


def _message(row: Mapping[str, Any]) -> Message:
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
    result: list[list[Any]] = []
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False).tolist()
        ends = np.cumsum(chunk.value_lengths().to_numpy(zero_copy_only=False)).tolist()
        result.extend(values[start:end] for start, end in zip([0, *ends], ends, strict=False))
    return result
