"""An engine that replies by a function: deterministic, without a model, for tests and scripted policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pipeline.engines.protocol import Generation, GenerationRequest, check_requests, refuse_in_flight

if TYPE_CHECKING:
    import torch

Reply = Callable[[GenerationRequest], Sequence[int]]


class ScriptedEngine:
    """A real implementation of `Engine`: the script says what is sampled, the engine keeps the contract.

    A reply is cut after the first stop token and at `max_new_tokens`; a shorter one without a stop token is
    refused. Without `logprobs` each token is a certain choice. One `collect` answers `max_per_collect`
    requests, oldest first, so that finished and unfinished ones interleave as in a real engine; None answers
    all.
    """

    def __init__(
        self,
        reply: Reply,
        policy_digest: str = "scripted",
        *,
        max_per_collect: int | None = None,
        max_length: int = 2**31 - 1,
        logprobs: Callable[[GenerationRequest, Sequence[int]], Sequence[float]] | None = None,
    ) -> None:
        self.policy_digest = policy_digest
        self.max_length = self.room = max_length
        self._reply = reply
        self._logprobs = logprobs
        self._max_per_collect = max_per_collect
        self._queue: deque[GenerationRequest] = deque()

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue."""
        check_requests(requests, {request.request_id for request in self._queue}, self.max_length)
        self._queue.extend(requests)

    def collect(self) -> list[Generation]:
        """Returns at least one finished request, or [] when nothing is in flight; never waits."""
        number = min(len(self._queue), self._max_per_collect or len(self._queue))
        return [self._answer(self._queue.popleft()) for _ in range(number)]

    def release(self, cache_keys: Sequence[str]) -> None:
        """Does nothing: a script has no cache."""

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Takes the digest; a script has no weights."""
        refuse_in_flight(self._queue, "loading weights")
        self.policy_digest = policy_digest

    def sleep(self) -> None:
        """Frees nothing."""
        refuse_in_flight(self._queue, "sleeping")

    def close(self) -> None:
        """Drops the queue; idempotent."""
        self._queue.clear()

    def _answer(self, request: GenerationRequest) -> Generation:
        tokens: list[int] = []
        stopped = False
        for token in self._reply(request):
            tokens.append(int(token))
            stopped = tokens[-1] in request.stop_token_ids
            if stopped or len(tokens) == request.max_new_tokens:
                break
        if not stopped and len(tokens) < request.max_new_tokens:
            raise ValueError(
                f"the script answered {request.request_id!r} with {len(tokens)} tokens and no stop token of "
                f"{request.stop_token_ids}; end replies with one, or give all {request.max_new_tokens} tokens"
            )
        logprobs = [0.0] * len(tokens) if self._logprobs is None else list(self._logprobs(request, tokens))
        reason: Literal["stop", "length"] = "stop" if stopped else "length"
        return Generation(request.request_id, tokens, logprobs, reason)
