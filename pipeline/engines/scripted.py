"""An engine that replies by a function: deterministic, without a model, for tests and scripted policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.engines.protocol import EngineCounters, Generation, GenerationRequest
from pipeline.engines.requests import check_requests

if TYPE_CHECKING:
    import torch

Reply = Callable[[GenerationRequest], Sequence[int]]


class ScriptedEngine:
    """A real implementation of `Engine`: the script says what is sampled, the engine keeps the contract.

    Args:
        reply: tokens of one request, a pure function of it. They are cut after the first stop token and
            at `max_new_tokens`; a shorter reply without a stop token is refused.
        policy_digest: name of what replies.
        max_per_collect: requests answered by one `collect`, oldest first; None answers all. Small numbers
            make finished and unfinished requests interleave as in a real engine.
        max_length: longest prompt and `max_new_tokens` together.
        logprobs: log-probability of each token of a reply; None means 0.0: a certain choice.
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
        if max_per_collect is not None and max_per_collect < 1:
            raise ValueError(f"max_per_collect = {max_per_collect}; it is at least 1, or None")
        self.policy_digest = policy_digest
        self.max_length = max_length
        self.counters = EngineCounters()
        self._reply = reply
        self._logprobs = logprobs
        self._max_per_collect = max_per_collect
        self._queue: deque[GenerationRequest] = deque()
        self._in_flight: set[str] = set()
        self._caches: dict[str, tuple[int, ...]] = {}

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue. Raises ValueError, adding none, if one is empty or cannot fit."""
        check_requests(requests, self._in_flight, self.max_length)
        for request in requests:
            self._in_flight.add(request.request_id)
            self._queue.append(request)

    def collect(self, *, wait: bool = True) -> list[Generation]:
        """Returns at least one finished request, or [] when nothing is in flight; never waits."""
        number = len(self._queue) if self._max_per_collect is None else self._max_per_collect
        return [self._answer(self._queue.popleft()) for _ in range(min(number, len(self._queue)))]

    def release(self, cache_keys: Sequence[str]) -> None:
        """Forgets the caches kept under these keys."""
        for key in cache_keys:
            self._caches.pop(key, None)

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Takes the digest and drops every cache; a script has no weights. Raises RuntimeError in flight."""
        if self._queue:
            raise RuntimeError(
                f"{len(self._queue)} requests are in flight; collect them before loading weights"
            )
        self._caches.clear()
        self.policy_digest = policy_digest

    def sleep(self) -> None:
        """Drops every cache. Raises RuntimeError in flight."""
        if self._queue:
            raise RuntimeError(f"{len(self._queue)} requests are in flight; collect them before sleeping")
        self._caches.clear()

    def close(self) -> None:
        """Drops the queue and every cache; idempotent."""
        self._queue.clear()
        self._in_flight.clear()
        self._caches.clear()

    def _answer(self, request: GenerationRequest) -> Generation:
        tokens: list[int] = []
        for token in self._reply(request):
            tokens.append(int(token))
            if tokens[-1] in request.stop_token_ids or len(tokens) == request.max_new_tokens:
                break
        stopped = bool(tokens) and tokens[-1] in request.stop_token_ids
        if not stopped and len(tokens) < request.max_new_tokens:
            raise ValueError(
                f"the script answered {request.request_id!r} with {len(tokens)} tokens and no stop token of "
                f"{request.stop_token_ids}; end replies with one, or give all {request.max_new_tokens} tokens"
            )
        logprobs = [0.0] * len(tokens) if self._logprobs is None else list(self._logprobs(request, tokens))
        prompt = tuple(request.prompt_token_ids)
        self.counters.requests += 1
        self.counters.prompt_tokens += len(prompt)
        self.counters.generated_tokens += len(tokens)
        reused = 0
        if request.cache_key is not None:
            reused = common_prefix(self._caches.get(request.cache_key, ()), prompt[:-1])
            self.counters.cached_tokens += reused
            self._caches[request.cache_key] = (*prompt, *tokens[:-1])
        self._in_flight.remove(request.request_id)
        return Generation(request.request_id, tokens, logprobs, "stop" if stopped else "length", reused)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many leading tokens two sequences share.

    Example:
        >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
        2
    """
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
