"""What every engine asks of a request before it is queued."""

from __future__ import annotations

from pipeline.engines import GenerationRequest


def check_request(request: GenerationRequest) -> None:
    """Raises ValueError if a request breaks the protocol's ranges, whatever the engine."""
    name = request.request_id
    if len(request.prompt_token_ids) == 0:
        raise ValueError(f"request {name!r} has an empty prompt; the first token is sampled given at least one")
    if request.max_new_tokens < 1:
        raise ValueError(f"request {name!r}: max_new_tokens = {request.max_new_tokens}; it is at least 1")
    if request.temperature < 0:
        raise ValueError(f"request {name!r}: temperature = {request.temperature}; it is > 0, or 0 for greedy")
    if not 0 < request.top_p <= 1:
        raise ValueError(f"request {name!r}: top_p = {request.top_p}; it lies in (0, 1], 1 keeps every token")
    if request.top_k == 0 or request.top_k < -1:
        raise ValueError(f"request {name!r}: top_k = {request.top_k}; it is >= 1, or -1 to keep every token")
