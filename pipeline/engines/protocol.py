"""Generation behind one small protocol: token ids in, token ids and log-probabilities out.

An engine is a continuous queue: `submit` adds requests, `collect` returns those that have finished
since. So a rollout's next turn starts when its last one is answered, with no barrier between rollouts.
Only `stages` import a backend; everything else takes an `Engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One piece of text to sample.

    Attributes:
        request_id: unique among the requests in flight.
        prompt_token_ids: everything before the first sampled token.
        seed: seeds this request alone; equal seed and prompt give equal tokens up to rounding.
        max_new_tokens: >= 1.
        stop_token_ids: sampling ends after one of these, which is kept in the output.
        temperature: > 0, or 0 for greedy.
        top_p: 1.0 keeps every token.
        top_k: -1 keeps every token.
        cache_key: requests of one rollout share it, each extending the last one's tokens; an engine may
            keep that prefix's key-value cache. A hint: dropping it changes speed only.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    seed: int
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    cache_key: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What came back for one request.

    Attributes:
        request_id: of the request.
        token_ids: sampled tokens, a stop token included.
        logprobs: [len(token_ids)] log-probability of each under the distribution it was sampled from
            (temperature applied); for greedy requests under temperature 1. Not finite if the model broke
            down, which the caller has to refuse.
        finish_reason: "stop" after a stop token, "length" at max_new_tokens.
        cached_tokens: tokens of its prompt whose key-value cache was reused.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    cached_tokens: int = field(default=0, compare=False)  # how it was made, not what


@dataclass(slots=True)
class EngineCounters:
    """What an engine has done since it was made; counts, never seconds.

    Attributes:
        requests: finished requests.
        prompt_tokens: tokens in prompts.
        cached_tokens: of these, tokens whose key-value cache was reused.
        generated_tokens: sampled tokens.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class Engine(Protocol):
    """A policy that can be sampled.

    Attributes:
        policy_digest: names the weights it holds now.
        max_length: longest prompt and `max_new_tokens` together; longer requests are refused.
        counters: what it has done.
    """

    policy_digest: str
    max_length: int
    counters: EngineCounters

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue. Raises ValueError if a prompt is empty or cannot fit."""
        ...

    def collect(self, *, wait: bool = True) -> list[Generation]:
        """Returns at least one finished request, or [] when nothing is in flight.

        Without `wait`, after one step of work at most: perhaps none although some are in flight.
        """
        ...

    def release(self, cache_keys: Sequence[str]) -> None:
        """Forgets the caches kept under these keys."""
        ...

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Replaces the weights and drops every cache; only while nothing is in flight."""
        ...

    def sleep(self) -> None:
        """Frees what memory it can while others need it; only while nothing is in flight; idempotent.

        It wakes by itself when requests are collected or weights loaded, with its weights and no cache.
        """
        ...

    def close(self) -> None:
        """Frees what it holds; idempotent."""
        ...
