"""What the stages hand to each other, as frozen dataclasses; `tables.py` is their form on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Context = Literal["bare", "guided"]
VerifierStatus = Literal["ok", "wrong", "unknown"]
FinishReason = Literal["success", "ended", "max_turns", "max_tokens", "failed"]
RolloutKind = Literal["whole", "continuation", "sibling", "after_sibling"]
"""Played from its prompt; continued from a state; continued to be one of several next steps from a state;
continued after such a step."""
Message = dict[str, Any]
"""OpenAI chat message: role, content, and for assistants `tool_calls` with arguments as JSON strings."""


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with what its grader needs; verl's columns, so verl and TRL users can bring theirs.

    Attributes:
        task_id: H of the content.
        data_source: which grader and generator, e.g. "phone".
        split: train, val, or a test split, named test_...
        level: difficulty, from 1.
        prompt: OpenAI messages that open the episode.
        style: how the answer is graded ("rule").
        ground_truth: a string for the grader alone; for generated worlds the generator's key.
        ability: verl's family name of the skill.
        cluster: the unit that intervals and splits must not cut.
        index: place in the split.
        details: facts for analysis, JSON-serialisable; never shown to a policy.
    """

    task_id: str
    data_source: str
    split: str
    level: int
    prompt: tuple[Message, ...]
    style: str
    ground_truth: str
    ability: str
    cluster: str
    index: int
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in an episode: the single source of feedback, metrics and step labels.

    Attributes:
        code: a status, tool error, parser kind, `probe` or `over_collected`.
        turn: 0-based turn in which it happened.
        target: what it concerns (a department, a tool), or "".
        fields: field names it concerns, sorted.
        detail: a short fact in words, never a hidden value.
    """

    code: str
    turn: int
    target: str = ""
    fields: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grader's word on a whole episode.

    Attributes:
        reward: in [0, 1]; None when it could not be graded (then `infra_error` says why).
        success: whether the task was solved; None with a null reward.
        cost: price of over-collection, probing and other faults, >= 0; kept whatever the reward style.
        steps: verdicts on messages or parts of them, in order.
        first_error: place in `steps` of the first `wrong` one, or None.
        infra_error: kind of environment failure, or None.
    """

    reward: float | None
    success: bool | None
    cost: float = 0.0
    steps: tuple[StepVerdict, ...] = ()
    first_error: int | None = None
    infra_error: str | None = None


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The verifier's word on a message of the policy, or a part of it. `unknown` is never read as `wrong`.

    Attributes:
        message_index: which of the episode's assistant messages, from 0.
        status: ok, wrong or unknown.
        code: event code behind a `wrong`.
        message: the verdict in words.
        char_start: first character of the message that it is about.
        char_end: one past the last; None: to the end of the message.
    """

    message_index: int
    status: VerifierStatus
    code: str = ""
    message: str = ""
    char_start: int = 0
    char_end: int | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a failed attempt tells the next one.

    Attributes:
        text: at most 600 characters.
        source: which generator and verbosity, e.g. "rules/observed".
        privileged: whether it states a fact the rollout neither saw nor could derive.
    """

    text: str
    source: str
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The unit of value and advantage: a message of the policy, a line of it, a block of code.

    `pipeline.columns.STEPS` says what each field means.
    """

    step_index: int
    message_index: int
    token_start: int
    token_end: int
    text: str
    verifier_status: VerifierStatus = "unknown"
    verifier_code: str = ""
    verifier_message: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One graded episode of one policy on one task: complete enough to recompute every loss.

    `pipeline.columns.ROLLOUTS` says what each field means; `steps` has one entry per step.
    """

    rollout_id: str
    kind: RolloutKind
    task_id: str
    group_id: str
    iteration: int
    attempt: int
    draw: int
    parent_rollout_ids: tuple[str, ...]
    start_step_index: int
    guided: bool
    feedback_in_context: str
    messages: tuple[Message, ...]
    prompt_token_ids: tuple[int, ...]
    response_token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float
    top_p: float
    top_k: int
    max_response_tokens: int
    seed: int
    policy_digest: str
    tokenizer_digest: str
    template_digest: str
    finish_reason: FinishReason
    reward: float | None
    cost: float
    env_status: str
    events: tuple[Event, ...]
    feedback_text: str
    feedback_source: str
    steps: tuple[Step, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and response."""
        return self.prompt_token_ids + self.response_token_ids

    @property
    def message_texts(self) -> tuple[str, ...]:
        """The policy's messages as sampled; of a continuation, what it added to them."""
        texts: dict[int, str] = {}
        for step in self.steps:
            texts[step.message_index] = texts.get(step.message_index, "") + step.text
        return tuple(texts.values())

    @property
    def num_trainable_tokens(self) -> int:
        """Number of tokens with loss_mask 1."""
        return sum(self.loss_mask)

    @property
    def context(self) -> Context:
        """`guided` when the prompt carries feedback, else `bare`."""
        return "guided" if self.guided else "bare"


@dataclass(frozen=True, slots=True, order=True)
class StateRef:
    """The state before a step of a rollout, in the rollout's own context."""

    rollout_id: str
    step_index: int
    context: Context


@dataclass(frozen=True, slots=True)
class Label:
    """What is known of the value of one step state.

    `pipeline.columns.LABELS` says what each field means.
    """

    rollout_id: str
    step_index: int
    context: Context
    num_continuations: int
    num_success: float
    outcome: float | None
    target: float
    weight: float
    label_source: str
    label_policy_digest: str
