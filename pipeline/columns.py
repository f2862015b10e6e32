"""The main tables, column by column: type, unit and meaning.

`vdapo dictionary` renders them as `data/README.md`.
"""

import dataclasses
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa

from pipeline.schema import Column, TableSpec, list_of, struct_of
from pipeline.types import Answer, Label, Message, Pair, Rollout, StateRef, Step

_text, _int, _float = pa.string(), pa.int32(), pa.float64()
_ARROW = {
    str: _text,
    int: _int,
    float: _float,
    bool: pa.bool_(),
    Message: pa.struct(
        [
            pa.field("role", _text, nullable=False),
            *(pa.field(name, _text) for name in ("content", "tool_calls", "tool_call_id")),
        ]
    ),
}


def columns_of(row: type) -> tuple[Column, ...]:
    """Returns a column for each `Annotated` field of a dataclass; other fields belong to other tables."""
    columns = []
    for name, hint in get_type_hints(row, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        kind, *notes = get_args(hint)
        nullable = get_origin(kind) is UnionType
        if nullable:
            [kind] = (member for member in get_args(kind) if member is not NoneType)
        stored = next((note for note in notes if isinstance(note, pa.DataType)), None)
        description, *unit = (note for note in notes if isinstance(note, str))
        columns.append(
            Column(
                name,
                stored or _arrow_type(kind),
                description,
                unit[0] if unit else "",
                nullable=nullable,
                allowed=get_args(kind) if get_origin(kind) is Literal else (),
            )
        )
    return tuple(columns)


def _arrow_type(kind: Any) -> pa.DataType:
    if get_origin(kind) is tuple:
        return list_of(_arrow_type(get_args(kind)[0]))
    if get_origin(kind) is Annotated:
        return kind.__metadata__[0]
    if get_origin(kind) is Literal:
        return _text
    if dataclasses.is_dataclass(kind):
        return struct_of(**{name: _arrow_type(inner) for name, inner in get_type_hints(kind).items()})
    return _ARROW[kind]


TASKS = TableSpec(
    "tasks",
    "One row per task: a problem with what its grader needs, in verl's columns.",
    (
        Column("task_id", _text, "H of the task's content"),
        Column("data_source", _text, "which generator and grader: the environment's name"),
        Column("split", _text, "`train`, `val`, or a test split of the environment's"),
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
    columns_of(Rollout),
    ("rollout_id",),
)

STEPS = TableSpec(
    "steps",
    "One row per step, a message of the policy or a part of one: the unit of value and advantage.",
    (Column("rollout_id", _text, "its rollout"), *columns_of(Step)),
    ("rollout_id", "step_index"),
)

LABELS = TableSpec(
    "labels",
    "One row per step state in a context: what is known of its value.",
    columns_of(Label),
    ("rollout_id", "step_index", "context"),
)

VALUES = TableSpec(
    "values",
    "One row per step state in a context, and critic.",
    (
        *columns_of(StateRef),
        Column(
            "critic",
            _text,
            "digest of the critic; if the actor's watch had recalibrated it, followed by "
            "` slope=a shift=b`: sigmoid(a logit(V) + b). Without a critic, how they were made",
        ),
        Column("value", _float, "V(s), in [0, 1] when calibrated"),
    ),
    ("rollout_id", "step_index", "context", "critic"),
)

UPDATES = TableSpec(
    "updates",
    "One row per update of the actor and rollout that it trained on: what its loss needs beside other "
    "tables. If `actor.guided` is stripped, a guided rollout trains after the prompt of its group's "
    "attempt 0.",
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
    ("rollout_id", "update"),
)

LOOKS = TableSpec(
    "looks",
    "One row per look of the actor at a held-out task: a first try at temperature 1, for evaluation alone.",
    (
        Column("iteration", _int, "iterations of training before it"),
        Column("policy_digest", _text, "digest of the weights that were looked at"),
        Column("task_id", _text, "the task, of the split `val`"),
        Column("reward", _float, "outcome of the attempt; null: it could not be graded", nullable=True),
    ),
    ("iteration", "task_id"),
)

PAIRS = TableSpec(
    "pairs",
    "One row per pair of answers of which one is preferred; a column of one has its side's name first.",
    (
        *columns_of(Pair),
        *(
            dataclasses.replace(column, name=f"{side}_{column.name}")
            for side in ("chosen", "rejected")
            for column in columns_of(Answer)
        ),
    ),
    ("pair_id",),
)

REFERENCE = TableSpec(
    "reference",
    "One row per pair that dpo trained on or looked at: what its loss needs beside `pairs`.",
    (
        Column("pair_id", _text, "its pair"),
        *(
            Column(
                f"{side}_logprobs",
                list_of(pa.float32()),
                f"of the policy that training began with, over the {side} answer; 0 where the mask is 0",
                "nats",
            )
            for side in ("chosen", "rejected")
        ),
    ),
    ("pair_id",),
)

_AMORTISED = Column("amortised_rollouts", _float, "of `rollouts` those that the policy may learn from")
_ARM = (Column("arm", _text, "its name in `comparison.arms`"), Column("seed", pa.int64(), "of the run"))

COMPARISON = TableSpec(
    "comparison",
    "One row per look at a run of a comparison: a point of its success curve.",
    (
        *_ARM,
        Column("iteration", _int, "iterations of training before it; -1: the starting policy, at no cost"),
        Column("rollouts", _float, "sampled for the run so far, by all of its stages, looks left out"),
        Column("tokens", _float, "generated for it so far", "tokens"),
        Column("seconds", _float, "that its stages took so far, `tasks` and `sft` left out", "s"),
        _AMORTISED,
        Column("success", _float, "mean reward of the look, in [0, 1]"),
        Column(
            "training_return",
            _float,
            "mean reward of first tries on training tasks since the look before; null: there were none",
            nullable=True,
        ),
        Column("task_ids", list_of(_text), "the graded tasks of the look"),
        Column("clusters", list_of(_text), "their clusters"),
        Column("rewards", list_of(_float), "their rewards"),
    ),
    ("arm", "seed", "iteration"),
)

SPENDING = TableSpec(
    "spending",
    "One row per run of a comparison and stage that it paid for.",
    (
        *_ARM,
        Column("stage", _text, "the stage; `refresh`: all that refreshed critics took"),
        Column("rollouts", _float, "sampled"),
        Column("tokens", _float, "generated", "tokens"),
        Column("seconds", _float, "of the stage, looks left out", "s"),
        _AMORTISED,
    ),
    ("arm", "seed", "stage"),
)

REPLAY = TableSpec(
    "replay",
    "One row per rollout of a replay buffer, oldest first, as in the `rollouts` beside it.",
    (Column("rollout_id", _text, "the rollout"), Column("round", _int, "number of the round that made it")),
    ("rollout_id",),
)

MONITORING = TableSpec(
    "monitoring",
    "One row per round and arm of its traffic: what `vdapo monitor` puts side by side.",
    (
        Column("round", _int, "number of the round"),
        Column("arm", _text, "`baseline`, the policy that was served, or `candidate`"),
        Column("policy_digest", _text, "digest of its weights"),
        Column("rollouts", _int, "graded rollouts"),
        Column("failed", _int, "rollouts that nobody could grade"),
        Column(
            "reward_sum",
            _float,
            "sum of their rewards, each cut to [0, 1]; their successes where calls are priced",
        ),
        Column("success", _float, "share of these that succeeded; null: there were none", nullable=True),
        Column("unsafe", _int, "of these, how many have an event that the environment calls unsafe"),
        Column(
            "satisfaction",
            _float,
            "mean of what the environment says whoever asked thinks of it, in [0, 1]; null: it says nothing",
            nullable=True,
        ),
    ),
    ("round", "arm"),
)

SPECS: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        *(TASKS, ROLLOUTS, STEPS, LABELS, VALUES, UPDATES, LOOKS, PAIRS, REFERENCE),
        *(COMPARISON, SPENDING, REPLAY, MONITORING),
    )
}
