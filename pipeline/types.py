"""What the stages hand to each other, as frozen dataclasses; `tables.py` is their form on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Context = Literal["bare", "guided"]
VerifierStatus = Literal["ok", "wrong", "unknown"]
FinishReason = Literal["success", "ended", "max_turns", "max_tokens", "failed"]
Message = dict[str, Any]
"""OpenAI chat message: role, content, and for assistants `tool_calls` with arguments as JSON strings."""


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with what its grader needs; verl's columns, so verl and TRL users can bring theirs.

    Attributes:
        task_id: H of the content.
        data_source: which grader and generator, e.g. "phone".
        split: train, val, or a test split such as test_unseen_company.
        level: difficulty, from 1.
        prompt: OpenAI messages that open the episode.
        style: how the answer is graded ("rule").
        ground_truth: a string for the grader alone; for generated worlds the generator's key.
        ability: verl's family name of the skill.
        cluster: the unit that intervals and splits must not cut (phone: the company).
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
        steps: verdict on each step, in order.
        first_error: index of the first `wrong` step, or None.
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
    """The verifier's word on one step. `unknown` is never read as `wrong`."""

    index: int
    status: VerifierStatus
    code: str = ""
    message: str = ""


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
    """The unit of value and advantage: one assistant message of a tool episode.

    Attributes:
        step_index: place in the whole rollout; a continuation starts at its `start_step_index`.
        token_start: first token, as an offset into `response_token_ids`.
        token_end: one past the last; spans tile exactly the tokens with loss_mask 1.
        text: the message as sampled.
        verifier_status: ok, wrong or unknown.
        verifier_code: event code behind a `wrong`, else "".
        verifier_message: in words.
    """

    step_index: int
    token_start: int
    token_end: int
    text: str
    verifier_status: VerifierStatus = "unknown"
    verifier_code: str = ""
    verifier_message: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One graded episode of one policy on one task: complete enough to recompute every loss.

    Attributes:
        rollout_id: H of what it is (see `ids.py`).
        task_id: its task.
        group_id: the rollouts of one task in one iteration.
        iteration: pass of sampling, from 0.
        attempt: 0-based place in the group's feedback chain.
        draw: place among the rollouts of that attempt.
        parent_rollout_ids: failed rollouts whose feedback is in the prompt; for a continuation, its parent.
        start_step_index: 0, or the step a continuation starts from.
        guided: whether the prompt carries feedback.
        feedback_in_context: that feedback as text, "" for a bare prompt.
        messages: the whole episode in OpenAI form.
        prompt_token_ids: everything before the first sampled token.
        response_token_ids: sampled tokens and the environment's replies, as the engine was given them.
        loss_mask: 1 where the token was sampled by this rollout's policy.
        logprobs: [len(response)] of the behaviour policy at its temperature; 0.0 where loss_mask is 0.
        temperature: sampling temperature; 0 is greedy.
        top_p: 1.0 for anything that is trained on.
        top_k: -1 for anything that is trained on.
        max_response_tokens: token budget of the episode's sampled tokens and replies.
        seed: seeds sampling and the environment's wording.
        policy_digest: weights that sampled it.
        tokenizer_digest: tokenizer that encoded it.
        template_digest: prompt style that rendered it.
        finish_reason: success, ended (a message without a call), max_turns, max_tokens, failed.
        reward: None when it could not be graded.
        cost: the verdict's price.
        env_status: "ok" or the kind of failure.
        events: everything that happened.
        feedback_text: what the environment says of this attempt, "" if nothing.
        feedback_source: who said it.
        steps: one per assistant message of this rollout.
    """

    rollout_id: str
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
    def num_trainable_tokens(self) -> int:
        """Number of tokens with loss_mask 1."""
        return sum(self.loss_mask)

    @property
    def context(self) -> Context:
        """`guided` when the prompt carries feedback, else `bare`."""
        return "guided" if self.guided else "bare"


@dataclass(frozen=True, slots=True)
class Label:
    """What is known of the value of one step state.

    Attributes:
        rollout_id: rollout the state lies in.
        step_index: the state before this step.
        context: bare or guided.
        num_continuations: n >= 0 samples of the target policy from this state.
        num_success: 0 <= k <= n of them succeeded.
        outcome: the rollout's own reward where it may label this state, else None.
        target: y in [0, 1] the critic is fitted to; R where a bootstrapped rule makes y during the fit.
        weight: n_eff > 0: n, the own outcome counted, plus kappa; 1 where a rule made the target.
        label_source: continuation, outcome, recovery (no sample, only the recovery model), or the rule that
            made the target (`critics/labels/named_targets.py`): monte_carlo, td, td_lambda, outcome_dense,
            rule_decay.
        label_policy_digest: the target policy.
    """

    rollout_id: str
    step_index: int
    context: Context
    num_continuations: int
    num_success: int
    outcome: float | None
    target: float
    weight: float
    label_source: str
    label_policy_digest: str
