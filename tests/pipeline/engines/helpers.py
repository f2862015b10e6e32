"""A tiny model, requests to it, and what a plain forward pass says of the answers."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.models.tiny import TinyShape

VOCAB, STOP = 48, 1
SHAPE = TinyShape(32, 2, 4, 2, 32, 48, 256, initializer_range=0.2)


def tiny_model(seed: int = 0) -> Any:
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(seed)
    return Qwen3ForCausalLM(SHAPE.config(VOCAB, pad_token_id=0, eos_token_id=STOP, bos_token_id=None)).eval()


def ask(request_id: str, prompt: Sequence[int], **changes: Any) -> GenerationRequest:
    settings: dict[str, Any] = {"seed": 7, "max_new_tokens": 12, "stop_token_ids": (STOP,)} | changes
    return GenerationRequest(request_id, list(prompt), **settings)


def some_prompts(number: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, VOCAB) for _ in range(rng.randrange(1, 40))] for _ in range(number)]


def some_requests(number: int, letter: str = "r", **changes: Any) -> list[GenerationRequest]:
    """Returns requests `r0`, `r1` and so on, each with a prompt and a seed of its own."""
    return [ask(f"{letter}{i}", prompt, seed=i, **changes) for i, prompt in enumerate(some_prompts(number))]


def answers(engine: Engine, requests: Sequence[GenerationRequest] = ()) -> dict[str, Generation]:
    """Returns the answers to these requests and to all in flight, each of which must come once."""
    engine.submit(requests)
    found: dict[str, Generation] = {}
    while generations := engine.collect():
        for generation in generations:
            assert generation.request_id not in found
            found[generation.request_id] = generation
    return found


def reused(found: Mapping[str, Generation]) -> int:
    return sum(generation.cached_tokens for generation in found.values())


def assert_agrees(model: Any, requests: Sequence[GenerationRequest], found: Mapping[str, Generation]) -> None:
    """Checks log-probabilities against a plain forward pass."""
    for request in requests:
        prompt, token_ids = list(request.prompt_token_ids), found[request.request_id].token_ids
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0]
        table = (logits / (request.temperature or 1.0)).log_softmax(-1)
        expected = [table[len(prompt) + i - 1, token].item() for i, token in enumerate(token_ids)]
        assert found[request.request_id].logprobs == pytest.approx(expected, abs=1e-4)
