"""One rollout while it is played: prompt, sampled messages, the environment's replies, verdict.

Token ids are kept as the engine gave and got them: the next prompt is always the last one plus the
sampled ids plus the ids of the environment's reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from env.play.coder import Coder
from env.play.failure import FailureError, guarded
from env.play.requests import EpisodeRequest, PlaySettings
from env.play.steps import Span, graded_steps, message_spans
from env.protocol import Action, ChatStyle, Env, StepResult
from env.splitters import SPLITTERS
from pipeline.engines import Generation, GenerationRequest
from pipeline.ids import seed_of
from pipeline.types import Event, Feedback, FinishReason, Message, Rollout, Task, Verdict

Outcome = GenerationRequest | Rollout
"""What an episode wants next: text, or to be over."""


@dataclass
class Episode:
    """One rollout while it is played."""

    request: EpisodeRequest
    make_env: Callable[[Task], Env]
    style: ChatStyle
    coder: Coder
    settings: PlaySettings
    max_length: int
    env: Env | None = None
    prompt: tuple[int, ...] = ()
    used: int = 0  # tokens of the budget that lie in a continuation's prompt
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    turn: int = 0  # the message that comes next, counted over the whole episode
    begun: tuple[int, ...] = ()  # tokens of that message that lie in a continuation's prompt
    end: FinishReason | None = None
    failure: FailureError | None = None

    def start(self) -> Outcome:
        """Returns the first request for text, or the graded rollout if the episode is over before it."""
        return self._start() or self._rollout()

    def advance(self, generation: Generation) -> Outcome:
        """Plays one sampled message; returns the next request, or the graded rollout."""
        return self._advance(generation) or self._rollout()

    def _start(self) -> GenerationRequest | None:
        parent = self.request.parent
        self.request.check(self.settings.tokenizer_digest)
        if parent is not None:
            self.turn = parent.steps[self.request.start_step_index].message_index
        try:
            env = guarded("make_env", lambda: self.make_env(self.request.task))
            self.env = env
            seed = self.request.seed if parent is None else parent.seed  # replay needs the parent's wording
            observation = guarded("reset", lambda: env.reset(self.request.task, seed))
            self.messages.extend(observation.messages)
            if parent is None:
                text = self.style.render_prompt(
                    observation.messages, self.request.previous_attempts, env.spec.tools
                )
                self.prompt = self.coder.encode(text)
            else:
                self._replay(env, parent)
            if len(self.prompt) >= self.max_length:
                raise FailureError(
                    "prompt_too_long", f"{len(self.prompt)} tokens, the engine has {self.max_length}"
                )
        except FailureError as failure:
            self._fail(failure)
            return None
        return self._next_request()

    def _advance(self, generation: Generation) -> GenerationRequest | None:
        if not all(map(math.isfinite, generation.logprobs)):
            for tokens in (self.response, self.mask, self.logprobs):
                del tokens[self.spans[-1].token_end if self.spans else 0 :]  # no reply that nothing follows
            self._fail(FailureError("bad_logprob", "a sampled token's log-probability is not finite"))
            return None
        text = self._say(generation)
        turn, self.turn = self.turn, self.turn + 1
        if generation.finish_reason == "length":
            # Cut off in the middle: what it would have said is unknown, so nothing of it is executed.
            self.messages.append({"role": "assistant", "content": text})
            self.end = "max_tokens"
            return None
        action = self.style.parse(text)
        try:
            result = self._step(action, turn)
        except FailureError as failure:
            self._fail(failure)
            return None
        if result.terminated:
            self.end = "ended"
        elif result.truncated:
            self.end = "max_turns"
        else:
            reply = self.coder.encode(self.style.render_replies(result.messages))
            size = len(self.response) + len(reply)
            if (
                self.used + size >= self.settings.max_response_tokens
                or len(self.prompt) + size >= self.max_length
            ):
                self.end = "max_tokens"  # a reply that nothing can follow is left out: responses end sampled
                return None
            self.response.extend(reply)
            self.logprobs.extend([0.0] * len(reply))
            self.mask.extend([0] * len(reply))
            return self._next_request()
        return None

    def _say(self, generation: Generation) -> str:
        """Takes sampled tokens over, as steps; returns the whole message that they end."""
        start, begun = len(self.response), len(self.begun)
        self.response.extend(generation.token_ids)
        self.logprobs.extend(generation.logprobs)
        self.mask.extend([1] * len(generation.token_ids))
        tokens, self.begun = (*self.begun, *generation.token_ids), ()
        text = self.coder.message_text(tokens)
        borders = SPLITTERS[self.settings.splitter](text)
        chars = self.coder.char_starts(tokens) if borders else [0] * len(tokens)
        spans = message_spans(
            text, borders, chars, message_index=self.turn, response_start=start, begun=begun
        )
        if not spans:
            raise ValueError(
                f"the parent's step {self.request.start_step_index} is none to the splitter "
                f"{self.settings.splitter!r} of rollout {self.request.rollout_id}. Next: continue rollouts "
                "with the splitter that made their steps"
            )
        self.spans.extend(spans)
        return text

    def _rollout(self) -> Rollout:
        request, parent = self.request, self.request.parent
        verdict = Verdict(reward=None, success=None)
        feedback: Feedback | None = None
        if self.failure is None and self.env is not None:
            try:
                verdict = guarded("verdict", self.env.verdict)
                if verdict.infra_error is not None:
                    raise FailureError(verdict.infra_error, "verdict")
                if not verdict.success:
                    feedback = guarded("feedback", self.env.feedback)
            except FailureError as failure:
                self._fail(failure)
        if self.failure is not None:
            verdict, feedback = Verdict(reward=None, success=None), None
        end: FinishReason = "success" if verdict.success else self.end or "failed"
        parents = request.parent_rollout_ids
        if parent is not None and not parents:
            parents = (parent.rollout_id,)
        return Rollout(
            rollout_id=request.rollout_id,
            kind=request.kind,
            task_id=request.task.task_id,
            group_id=request.group_id,
            iteration=request.iteration,
            attempt=request.attempt,
            draw=request.draw,
            parent_rollout_ids=parents,
            start_step_index=request.start_step_index,
            guided=bool(request.previous_attempts) if parent is None else parent.guided,
            feedback_in_context=request.feedback_in_context if parent is None else parent.feedback_in_context,
            messages=tuple(self.messages),
            prompt_token_ids=self.prompt,
            response_token_ids=tuple(self.response),
            loss_mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            temperature=self.settings.temperature,
            top_p=1.0,
            top_k=-1,
            max_response_tokens=self.settings.max_response_tokens,
            seed=request.seed,
            policy_digest=self.settings.policy_digest,
            tokenizer_digest=self.settings.tokenizer_digest,
            template_digest=self.settings.template_digest,
            finish_reason=end,
            reward=verdict.reward,
            cost=verdict.cost,
            env_status="ok" if self.failure is None else self.failure.kind,
            events=tuple(self.events),
            feedback_text=feedback.text if feedback else "",
            feedback_source=feedback.source if feedback else "",
            steps=graded_steps(self.spans, verdict.steps, first=request.start_step_index),
        )

    def close(self) -> None:
        """Closes the environment; a failure to close changes no result."""
        if self.env is not None:
            env, self.env = self.env, None
            try:
                env.close()
            except Exception as error:  # the rollout is already graded
                self.events.append(Event("infra_error", self.turn, "close", detail=type(error).__name__))

    def _next_request(self) -> GenerationRequest | None:
        budget = self.settings.max_response_tokens - self.used - len(self.response)
        budget = min(budget, self.max_length - len(self.prompt) - len(self.response))
        if budget < 1:
            self.end = "max_tokens"
            return None
        return GenerationRequest(
            request_id=f"{self.request.rollout_id}:{self.turn}",
            prompt_token_ids=(*self.prompt, *self.response),
            seed=seed_of(self.request.seed, "turn", self.turn),
            max_new_tokens=budget,
            stop_token_ids=(self.coder.stop_id,),
            temperature=self.settings.temperature,
            cache_key=self.request.rollout_id,
        )

    def _step(self, action: Action, turn: int) -> StepResult:
        env = self.env
        if env is None:
            raise RuntimeError("a step of an episode that has not started or is closed")
        result = guarded("step", lambda: env.step(action))
        self.messages.append(self.style.assistant_message(action, turn))
        self.messages.extend(result.messages)
        self.events.extend(result.events)
        if result.infra_error is not None:
            raise FailureError(result.infra_error, "step")
        return result

    def _replay(self, env: Env, parent: Rollout) -> None:
        """Plays the parent's first messages again and checks that the world answered as it did then."""
        for turn, text in enumerate(parent.message_texts[: self.turn]):
            result = self._step(self.style.parse(text), turn)
            if result.terminated or result.truncated:
                raise FailureError("replay_mismatch", f"the episode ended at message {turn}")
        said = [(message["role"], message.get("content")) for message in self.messages]
        then = [(message["role"], message.get("content")) for message in parent.messages[: len(said)]]
        if said != then:
            raise FailureError("replay_mismatch", "other messages than the parent's")
        self.used = parent.steps[self.request.start_step_index].token_start
        self.prompt = (*parent.prompt_token_ids, *parent.response_token_ids[: self.used])
        message_start = min(step.token_start for step in parent.steps if step.message_index == self.turn)
        self.begun = parent.response_token_ids[message_start : self.used]

    def _fail(self, failure: FailureError) -> None:
        self.failure = failure
        self.end = "failed"
        self.events.append(Event("infra_error", self.turn, failure.kind, detail=failure.detail))
