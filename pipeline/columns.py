"""The main tables, column by column: type, unit and meaning.

`vdapo dictionary` renders them as `data/README.md`.
"""

from __future__ import annotations

from typing import get_args

import pyarrow as pa

from pipeline.schema import Column, TableSpec, list_of, struct_of
from pipeline.types import RolloutKind

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
