"""What every engine asks of a request before it is queued."""

from __future__ import annotations

from collections.abc import Sequence, Set

from pipeline.engines.protocol import GenerationRequest


def check_requests(requests: Sequence[GenerationRequest], in_flight: Set[str], max_length: int) -> None:
    """Raises ValueError if any request cannot be queued, whatever the engine.

    Args:
        requests: what is submitted together.
        in_flight: ids of requests that are not answered yet.
        max_length: longest prompt and `max_new_tokens` together.
    """
    ids = [request.request_id for request in requests]
    if len(set(ids)) < len(ids) or not in_flight.isdisjoint(ids):
        twice = sorted(name for name in set(ids) if name in in_flight or ids.count(name) > 1)
        raise ValueError(f"request {twice[0]!r} is already in flight; ids are unique")
    for request in requests:
        _check_request(request)
        size = len(request.prompt_token_ids)
        total = size + request.max_new_tokens
        if total > max_length:
            raise ValueError(
                f"request {request.request_id!r} needs {total} positions ({size} of prompt and "
                f"{request.max_new_tokens} new), the engine has {max_length}; shorten the prompt, lower "
                "max_new_tokens, or use a model with more positions"
            )


def _check_request(request: GenerationRequest) -> None:
    name = request.request_id
    if len(request.prompt_token_ids) == 0:
        raise ValueError(
            f"request {name!r} has an empty prompt; the first token is sampled given at least one"
        )
    if request.max_new_tokens < 1:
        raise ValueError(f"request {name!r}: max_new_tokens = {request.max_new_tokens}; it is at least 1")
    if request.temperature < 0:
        raise ValueError(f"request {name!r}: temperature = {request.temperature}; it is > 0, or 0 for greedy")
    if not 0 < request.top_p <= 1:
        raise ValueError(f"request {name!r}: top_p = {request.top_p}; it lies in (0, 1], 1 keeps every token")
    if request.top_k == 0 or request.top_k < -1:
        raise ValueError(f"request {name!r}: top_k = {request.top_k}; it is >= 1, or -1 to keep every token")
