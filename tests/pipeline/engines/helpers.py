"""A tiny model, requests to it, and what a plain forward pass says of the answers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from pipeline.engines import Engine, Generation, GenerationRequest

VOCAB, STOP = 48, 1


def tiny_model(seed: int = 0) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=48,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=STOP,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def ask(request_id: str, prompt: list[int], **changes: Any) -> GenerationRequest:
    settings: dict[str, Any] = {"seed": 7, "max_new_tokens": 12, "stop_token_ids": (STOP,)} | changes
    return GenerationRequest(request_id, prompt, **settings)


def answers(engine: Engine, requests: list[GenerationRequest]) -> dict[str, Generation]:
    engine.submit(requests)
    found: dict[str, Generation] = {}
    while generations := engine.collect():
        for generation in generations:
            assert generation.request_id not in found
            found[generation.request_id] = generation
    return found


def some_prompts(number: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, VOCAB) for _ in range(rng.randrange(1, 40))] for _ in range(number)]


def plain_logprobs(
    model: Any, prompt: list[int], token_ids: list[int], temperature: float = 1.0
) -> list[float]:
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0]
    table = (logits / temperature).log_softmax(-1)
    return [table[len(prompt) + i - 1, token].item() for i, token in enumerate(token_ids)]


def assert_agrees(model: Any, requests: list[GenerationRequest], found: dict[str, Generation]) -> None:
    for request in requests:
        generation = found[request.request_id]
        expected = plain_logprobs(
            model, list(request.prompt_token_ids), generation.token_ids, request.temperature or 1.0
        )
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)
