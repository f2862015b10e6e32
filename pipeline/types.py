"""What the stages hand to each other, as frozen dataclasses; `tables.py` is their form on disk.

An `Annotated` field is a column of its table: its type, what it holds, its unit.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pyarrow as pa

Context = Literal["bare", "guided"]
VerifierStatus = Literal["ok", "wrong", "unknown"]
FinishReason = Literal["success", "ended", "max_turns", "max_tokens", "failed"]
RolloutKind = Literal["whole", "continuation", "sibling", "after_sibling", "recorded"]
PairMatch = Literal["prompt", "task", "similar"]
FEEDBACK_FAILURES = ("unreachable", "timeout", "http_error", "garbled", "too_large")
"""How a service that was to write feedback fails; any other reason against a text is the text's own."""
Message = dict[str, Any]
"""OpenAI chat message: role, content, and for assistants `tool_calls` with arguments as JSON strings."""
Int8 = Annotated[int, pa.int8()]
Int64 = Annotated[int, pa.int64()]
Float32 = Annotated[float, pa.float32()]


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with what its grader needs; `pipeline.columns.TASKS` says what each field means."""

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
    """One thing that happened in an episode: the single source of feedback, metrics and step labels."""

    code: str  # a status, tool error, parser kind, `probe` or `over_collected`
    turn: int  # from 0
    target: str = ""  # what it concerns (a tool, a part of the message)
    fields: tuple[str, ...] = ()  # names it concerns, sorted
    detail: str = ""  # a short fact in words, never a hidden value; of a failure what was raised, for people


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The verifier's word on a message of the policy, or a part of it. `unknown` is never read as `wrong`."""

    message_index: int  # which of the episode's assistant messages, from 0
    status: VerifierStatus
    code: str = ""  # event code behind a `wrong`
    message: str = ""  # the verdict in words
    char_start: int = 0  # first character of the message that it is about
    char_end: int | None = None  # one past the last; None: to the end of the message


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grader's word on a whole episode; its steps are verdicts on messages or parts of them, in order."""

    # In [0, 1], less the price of calls for feedback; None: not graded (then `infra_error` says why).
    reward: float | None
    success: bool | None  # None with a null reward
    cost: float = 0.0  # of over-collection, probing and other faults, >= 0; kept whatever the reward style
    steps: tuple[StepVerdict, ...] = ()
    infra_error: str | None = None  # kind of environment failure


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a failed attempt tells the next one."""

    text: str  # later prompts show 600 characters of it
    source: str  # which generator and verbosity, e.g. "rules/observed"
    privileged: bool = False  # whether it states a fact the rollout neither saw nor could derive


@dataclass(frozen=True, slots=True)
class Step:
    """The unit of value and advantage: a message of the policy, a line of it, a block of code."""

    step_index: Annotated[int, "place in the whole rollout; a continuation starts at its `start_step_index`"]
    message_index: Annotated[int, "which of the policy's messages it lies in, counted over the whole rollout"]
    token_start: Annotated[int, "first token, as an offset into `response_token_ids`", "tokens"]
    token_end: Annotated[int, "one past the last; spans tile exactly the tokens with `loss_mask` 1", "tokens"]
    text: Annotated[str, "its part of the message as sampled"]
    verifier_status: Annotated[VerifierStatus, "`ok`, `wrong` or `unknown`"] = "unknown"
    verifier_code: Annotated[str, "event code behind a `wrong`, else empty"] = ""
    verifier_message: Annotated[str, "the verdict in words"] = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One graded episode of one policy on one task: complete enough to recompute every loss."""

    rollout_id: Annotated[
        str, "H of group, attempt and draw (a continuation: of parent, step, context, draw)"
    ]
    kind: Annotated[
        RolloutKind,
        "`whole`: played from its prompt; `continuation`: from a state; `sibling`: one of several next "
        "steps from a state, and on; `after_sibling`: a continuation after such a step; `recorded`: brought "
        "in, its text encoded here, so what is said of sampling is this run's and not how it was made",
    ]
    task_id: Annotated[str, "its task"]
    group_id: Annotated[str, "the rollouts of one task in one iteration"]
    iteration: Annotated[int, "pass of sampling, from 0"]
    attempt: Annotated[int, "0-based place in the group's feedback chain"]
    draw: Annotated[int, "place among the rollouts of that attempt"]
    parent_rollout_ids: Annotated[
        tuple[str, ...], "failed rollouts with feedback in the prompt; a continuation's parent"
    ]
    start_step_index: Annotated[int, "0, or the step from which a continuation was sampled"]
    guided: Annotated[bool, "whether the prompt carries feedback"]
    feedback_in_context: Annotated[str, "that feedback as text; empty for a bare prompt"]
    messages: Annotated[
        tuple[Message, ...],
        "the whole episode in OpenAI form; `tool_calls` is that list as JSON text, or null",
    ]
    prompt_token_ids: Annotated[tuple[int, ...], "everything before the first sampled token", "token ids"]
    response_token_ids: Annotated[
        tuple[int, ...],
        "sampled tokens and the environment's replies, as the engine was given them",
        "token ids",
    ]
    loss_mask: Annotated[tuple[Int8, ...], "1 where the token was sampled by this rollout's policy, else 0"]
    logprobs: Annotated[
        tuple[Float32, ...],
        "of the behaviour policy at its temperature; 0 where `loss_mask` is 0; an empty list, and NaN in "
        "memory: nobody knows them, of a `recorded` rollout",
        "nats",
    ]
    temperature: Annotated[float, "of sampling; 0 is greedy"]
    top_p: Annotated[float, "nucleus; 1 for anything that is trained on"]
    top_k: Annotated[int, "-1 (off) for anything that is trained on"]
    max_response_tokens: Annotated[int, "budget of the episode, replies included", "tokens"]
    seed: Annotated[Int64, "seeds sampling and the environment's wording"]
    policy_digest: Annotated[str, "weights that sampled it; `recorded:` and H of them, of recorded ones"]
    tokenizer_digest: Annotated[str, "tokenizer that encoded it"]
    template_digest: Annotated[str, "prompt style that rendered it"]
    finish_reason: Annotated[
        FinishReason, "`success`, `ended` (a message without a call), `max_turns`, `max_tokens`, `failed`"
    ]
    reward: Annotated[
        float | None,
        "the grader's word, in [0, 1], less the price of calls of `get_feedback`; null when it could not be "
        "graded",
    ]
    cost: Annotated[float, "price of over-collection, probing, calls for feedback and other faults, >= 0"]
    env_status: Annotated[str, "`ok`, or the kind of failure that was not the policy's"]
    events: Annotated[
        tuple[Event, ...],
        "everything that happened: the single source of feedback, metrics and step verdicts",
    ]
    feedback_text: Annotated[str, "what later attempts are told of this one; empty if nothing"]
    feedback_source: Annotated[str, "who said it, or was to: `rules/observed`, `server/NAME`, `self`"]
    steps: tuple[Step, ...]
    feedback_status: Annotated[
        str, "empty: no model was asked; `ok`; else why its text is not shown (docs/feedback.md)"
    ] = ""
    feedback_request: Annotated[str, "what a model was asked: messages as JSON; empty: none was"] = ""
    feedback_answer: Annotated[
        str, "what it said before the guard, cut at 20,000 characters, or how it failed; no policy sees it"
    ] = ""
    feedback_tokens: Annotated[int, "generated for it, as the engine or the server counts", "tokens"] = 0

    @property
    def has_logprobs(self) -> bool:
        """Whether anybody knows its log-probabilities: no ratio is taken of it else."""
        return self.kind != "recorded"

    @property
    def feedback_failed(self) -> bool:
        """Whether feedback on it was asked for and the service failed."""
        return self.feedback_status in FEEDBACK_FAILURES

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

    rollout_id: Annotated[str, "rollout the state lies in"]
    step_index: Annotated[int, "the state before this step"]
    context: Annotated[Context, "`bare` or `guided`"]


@dataclass(frozen=True, slots=True)
class Label(StateRef):
    """What is known of the value of one step state."""

    num_continuations: Annotated[int, "fresh samples of the target policy from this state"]
    num_success: Annotated[float, "sum of their rewards: how many succeeded, where rewards are 0 or 1"]
    outcome: Annotated[float | None, "the rollout's own reward where it may label this state, else null"]
    target: Annotated[
        float,
        "the value the critic is fitted to, in [0, 1]; the reward under `td` and `td_lambda`: "
        "their values are made during the fit",
    ]
    weight: Annotated[
        float,
        "n_eff > 0: `num_continuations`, 1 more with an `outcome`, plus kappa; 1 where the rule in "
        "`labels.target` made the target",
        "samples",
    ]
    label_source: Annotated[
        str, "`continuation`, `outcome`, `recovery` (only the recovery model), or the rule in `labels.target`"
    ]
    label_policy_digest: Annotated[str, "the target policy's weights"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy said after a prompt, as one side of a pair; fields are columns behind the side's name."""

    answer_id: Annotated[str, "its rollout; of a recorded preference, H of its task and text"]
    task_id: Annotated[str, "its task"]
    reward: Annotated[float, "of its rollout; of a recorded preference the recorded score, else 1 or 0"]
    guided: Annotated[bool, "whether it was said after feedback, and stands here after the bare prompt"]
    prompt: Annotated[str, "the prompt in words"]
    text: Annotated[str, "the answer in words, replies of the environment included"]
    prompt_token_ids: Annotated[tuple[int, ...], "everything before the answer", "token ids"]
    response_token_ids: Annotated[tuple[int, ...], "the answer, replies included", "token ids"]
    loss_mask: Annotated[tuple[Int8, ...], "1 where the policy said the token, else 0"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A chosen answer and a rejected one."""

    pair_id: Annotated[str, "H of the two answers"]
    match: Annotated[
        PairMatch,
        "what the answers share: `prompt`, its tokens; `task`, after other prompts; `similar`, not even that",
    ]
    similarity: Annotated[float, "cosine of the tasks' words by TF-IDF; 1 of one task"]
    margin: Annotated[float, "reward of the chosen answer minus that of the rejected one, > 0"]
    held_out: Annotated[bool, "whether it is only looked at; no cluster has pairs of both kinds"]
    chosen: Answer
    rejected: Answer
