"""Generation behind one small protocol: token ids in, token ids and log-probabilities out.

An engine is a continuous queue: `submit` adds requests, `collect` returns those that have finished since. So
a rollout's next turn starts when its last one is answered, with no barrier between rollouts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One piece of text to sample, from the whole distribution.

    Requests of one rollout share a `cache_key`, each extending the last one's tokens; an engine may keep that
    prefix's key-value cache. A hint: dropping it changes speed only.
    """

    request_id: str  # unique among the requests in flight
    prompt_token_ids: Sequence[int]  # everything before the first sampled token
    seed: int  # of this request alone; equal seed and prompt give equal tokens up to rounding
    max_new_tokens: int  # >= 1
    stop_token_ids: tuple[int, ...]  # sampling ends after one of these, which is kept in the output
    temperature: float = 1.0  # > 0, or 0 for greedy
    cache_key: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What came back for one request.

    Log-probabilities are under the distribution that was sampled from (temperature applied), for greedy
    requests under temperature 1. They are not finite if the model broke down; the caller has to refuse that.
    """

    request_id: str
    token_ids: list[int]  # sampled, a stop token included
    logprobs: list[float]  # of each token
    finish_reason: Literal["stop", "length"]  # after a stop token, or at max_new_tokens
    cached_tokens: int = field(default=0, compare=False)  # of its prompt; how it was made, not what


class Engine(Protocol):
    """A policy that can be sampled."""

    policy_digest: str  # of the weights it holds now
    max_length: int  # positions of the model: longest prompt and max_new_tokens together
    room: int  # of these what it was started for; longer requests are refused

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Adds requests to the queue. Raises ValueError, adding none, if a prompt is empty or cannot fit."""

    def collect(self) -> list[Generation]:
        """Returns at least one finished request, or [] when nothing is in flight."""

    def release(self, cache_keys: Sequence[str]) -> None:
        """Forgets the caches kept under these keys."""

    def load_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> None:
        """Replaces the weights and drops every cache. Raises RuntimeError while requests are in flight."""

    def sleep(self) -> None:
        """Frees what memory it can while others need it; idempotent. Raises RuntimeError as above.

        It wakes by itself when requests are collected or weights loaded, with its weights and no cache.
        """

    def close(self) -> None:
        """Frees what it holds; idempotent."""


def refuse_in_flight(in_flight: Collection[object], before: str) -> None:
    """Raises RuntimeError unless nothing is in flight."""
    if in_flight:
        raise RuntimeError(f"{len(in_flight)} requests are in flight; collect them before {before}")


def check_requests(requests: Sequence[GenerationRequest], in_flight: Collection[str], limit: int) -> None:
    """Raises ValueError if any request cannot be queued beside those in flight, whatever the engine.

    Prompt and `max_new_tokens` together take `limit` positions at most.
    """
    seen = set(in_flight)
    for request in requests:
        name, size, new = request.request_id, len(request.prompt_token_ids), request.max_new_tokens
        for wrong, said in (
            (name in seen, "is already in flight; ids are unique"),
            (size == 0, "has an empty prompt; the first token is sampled given at least one"),
            (new < 1, f"has max_new_tokens = {new}; it is at least 1"),
            (request.temperature < 0, f"has temperature = {request.temperature}; >= 0, 0 is greedy"),
            (
                size + new > limit,
                f"needs {size + new} positions ({size} of prompt and {new} new), the engine has {limit}; "
                "shorten the prompt, lower max_new_tokens, or use a model with more positions",
            ),
        ):
            if wrong:
                raise ValueError(f"request {name!r} {said}")
        seen.add(name)
