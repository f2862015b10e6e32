"""One rollout while it is played: prompt, sampled messages, the environment's replies, verdict.

Token ids are kept as the engine gave and got them: the next prompt is always the last one plus the
sampled ids plus the ids of the environment's reply.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from env.chat.coder import Coder
from env.play.guard import FailureError, graded, guarded, opened, refuse_failure, stepped, taught
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.steps import graded_steps, message_steps
from env.protocol import Env, StepResult
from env.splitters import SPLITTERS
from pipeline.engines import Generation, GenerationRequest
from pipeline.ids import seed_of
from pipeline.types import Event, Feedback, FinishReason, Message, Rollout, Step, Verdict

Outcome = GenerationRequest | Rollout
"""What an episode wants next: text, or to be over."""


@dataclass
class Episode:
    """One rollout while it is played."""

    request: EpisodeRequest
    player: Player
    coder: Coder
    env: Env | None = None
    prompt: tuple[int, ...] = ()
    used: int = 0  # tokens of the budget that lie in a continuation's prompt
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    steps: list[tuple[int, Step]] = field(default_factory=list)  # each with its first character; ungraded
    turn: int = 0  # the message that comes next, counted over the whole episode
    begun: tuple[int, ...] = ()  # tokens of that message that lie in a continuation's prompt
    end: FinishReason = "failed"

    @property
    def in_threads(self) -> bool:
        """Whether its environment lets other threads play other episodes at the same time."""
        return self.env is not None and self.env.spec.in_threads

    def start(self) -> Outcome:
        """Returns the first request for text, or the graded rollout if the episode is over before it."""
        return self._after(self._start)

    def advance(self, generation: Generation) -> Outcome:
        """Plays one sampled message; returns the next request, or the graded rollout."""
        return self._after(partial(self._advance, generation))

    def close(self) -> None:
        """Closes the environment; a failure to close changes no result."""
        if self.env is not None:
            with suppress(Exception, SystemExit):  # the rollout is already graded
                self.env.close()
            self.env = None

    def _after(self, act: Callable[[], GenerationRequest | None]) -> Outcome:
        """Returns what an act asks for, or the graded rollout if that is nothing."""
        try:
            return act() or self._graded()
        except FailureError as failure:
            self.end = "failed"
            self.events.append(Event("infra_error", self.turn, failure.kind, detail=failure.detail))
            return self._rollout(Verdict(reward=None, success=None), None, failure.kind)

    def _start(self) -> GenerationRequest | None:
        request, parent = self.request, self.request.parent
        request.check(self.player.settings.tokenizer_digest)
        if parent is not None:
            self.turn = parent.steps[request.start_step_index].message_index
        env = self.env = guarded("make_env", lambda: self.player.make_env(request.task))
        seed = request.seed if parent is None else parent.seed  # replay needs the parent's wording
        messages = opened(env, request.task, seed).messages
        self.messages.extend(messages)
        if parent is None:
            style, attempts = self.player.style, request.previous_attempts
            self.prompt = self.coder.prompt(style, messages, env.spec.tools, attempts)
        else:
            self._replay(parent)
        size, engine = len(self.prompt), self.player.engine
        if size >= engine.max_length or size + self._room() > engine.room:
            raise FailureError(
                "prompt_too_long",
                f"{size} tokens, with a response up to {size + max(self._room(), 0)}; the engine was started "
                f"for {engine.room}. A larger prompt.max_feedback_tokens makes room for longer prompts",
            )
        return self._next_request()

    def _replay(self, parent: Rollout) -> None:
        """Plays the parent's first messages again and checks that the world answered as it did then."""
        for turn, text in enumerate(parent.message_texts[: self.turn]):
            result = self._step(text, turn)
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

    def _advance(self, generation: Generation) -> GenerationRequest | None:
        if not all(map(math.isfinite, generation.logprobs)):
            end = self.steps[-1][1].token_end if self.steps else 0
            for tokens in (self.response, self.mask, self.logprobs):
                del tokens[end:]  # a reply that nothing follows
            raise FailureError("bad_logprob", "a sampled token's log-probability is not finite")
        text = self._say(generation)
        turn, self.turn = self.turn, self.turn + 1
        if generation.finish_reason == "length":
            # Cut off in the middle: what it would have said is unknown, so nothing of it is executed.
            self.messages.append({"role": "assistant", "content": text})
            self.end = "max_tokens"
            return None
        result = self._step(text, turn)
        if result.terminated or result.truncated:
            self.end = "ended" if result.terminated else "max_turns"
            return None
        reply = self.coder.encode(self.player.style.render_replies(result.messages))
        if self._room() <= len(reply):
            self.end = "max_tokens"  # a reply that nothing can follow is left out: responses end sampled
            return None
        self._append(reply, [0.0] * len(reply), sampled=False)
        return self._next_request()

    def _say(self, generation: Generation) -> str:
        """Takes sampled tokens over, as steps; returns the whole message that they end."""
        start, begun, splitter = len(self.response), len(self.begun), self.player.settings.splitter
        self._append(generation.token_ids, generation.logprobs, sampled=True)
        tokens, self.begun = (*self.begun, *generation.token_ids), ()
        text = self.coder.message_text(tokens)
        borders = SPLITTERS[splitter](text)
        steps = message_steps(
            text,
            borders,
            self.coder.char_starts(tokens) if borders else [0] * len(tokens),
            message_index=self.turn,
            first_index=self.request.start_step_index + len(self.steps),
            response_start=start,
            begun=begun,
        )
        if not steps:
            raise ValueError(
                f"the parent's step {self.request.start_step_index} is none to the splitter {splitter!r} of "
                f"rollout {self.request.rollout_id}. Next: continue rollouts with the splitter that made "
                "their steps"
            )
        self.steps.extend(steps)
        return text

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float], *, sampled: bool) -> None:
        self.response.extend(tokens)
        self.logprobs.extend(logprobs)
        self.mask.extend([int(sampled)] * len(tokens))

    def _step(self, text: str, turn: int) -> StepResult:
        assert self.env is not None
        action = self.player.style.parse(text)
        result = stepped(self.env, action)
        self.messages.append(self.player.style.assistant_message(action, turn))
        self.messages.extend(result.messages)
        self.events.extend(result.events)
        refuse_failure(result, "step")
        return result

    def _room(self) -> int:
        """Returns how many more tokens fit into the budget and into the engine."""
        budget = self.player.settings.max_response_tokens - self.used
        return min(budget, self.player.engine.max_length - len(self.prompt)) - len(self.response)

    def _next_request(self) -> GenerationRequest | None:
        budget = self._room()
        if budget < 1:
            self.end = "max_tokens"
            return None
        return GenerationRequest(
            request_id=f"{self.request.rollout_id}:{self.turn}",
            prompt_token_ids=(*self.prompt, *self.response),
            seed=seed_of(self.request.seed, "turn", self.turn),
            max_new_tokens=budget,
            stop_token_ids=(self.coder.stop_id,),
            temperature=self.player.settings.temperature,
            cache_key=self.request.rollout_id,
        )

    def _graded(self) -> Rollout:
        assert self.env is not None
        verdict = graded(self.env)
        if verdict.success:
            return self._rollout(verdict, None, "ok")
        return self._rollout(verdict, taught(self.env), "ok")

    def _rollout(self, verdict: Verdict, feedback: Feedback | None, env_status: str) -> Rollout:
        request, parent, settings = self.request, self.request.parent, self.player.settings
        return Rollout(
            rollout_id=request.rollout_id,
            kind=request.kind,
            task_id=request.task.task_id,
            group_id=request.group_id,
            iteration=request.iteration,
            attempt=request.attempt,
            draw=request.draw,
            parent_rollout_ids=request.parent_rollout_ids if parent is None else (parent.rollout_id,),
            start_step_index=request.start_step_index,
            guided=bool(request.previous_attempts) if parent is None else parent.guided,
            feedback_in_context=request.feedback_in_context if parent is None else parent.feedback_in_context,
            messages=tuple(self.messages),
            prompt_token_ids=self.prompt,
            response_token_ids=tuple(self.response),
            loss_mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            temperature=settings.temperature,
            top_p=1.0,
            top_k=-1,
            max_response_tokens=settings.max_response_tokens,
            seed=request.seed,
            policy_digest=settings.policy_digest,
            tokenizer_digest=settings.tokenizer_digest,
            template_digest=settings.template_digest,
            finish_reason="success" if verdict.success else self.end,
            reward=None if verdict.reward is None else float(verdict.reward),  # tables hold no fractions
            cost=float(verdict.cost),
            env_status=env_status,
            events=tuple(self.events),
            feedback_text=feedback.text if feedback else "",
            feedback_source=feedback.source if feedback else "",
            steps=graded_steps(self.steps, verdict.steps),
        )
