"""What only the transformers engine promises: its numbers are a plain pass's, its caches change nothing."""

import copy
import math
import random

import pytest
import torch

import pipeline.engines.transformers
from pipeline.engines import Generation, GenerationRequest, slots
from pipeline.engines.transformers import TransformersEngine, choose_tokens
from tests.pipeline.engines.helpers import (
    STOP,
    answers,
    ask,
    assert_agrees,
    reused,
    some_prompts,
    tiny_model,
)


def engine_of(model: torch.nn.Module, max_live: int) -> TransformersEngine:
    """Returns an engine over a copy: its attention is another one from then on."""
    return TransformersEngine(copy.deepcopy(model), "p", max_live)


def test_equal_prompts_are_computed_once() -> None:
    model = tiny_model()
    prompt = some_prompts(1, seed=5)[0] * 3
    requests = [ask(f"r{i}", prompt, seed=i, cache_key=str(i)) for i in range(6)]
    engine = engine_of(model, 8)
    late = [ask("late", prompt, seed=9)]  # what a slot still holds is as good as what it computes now
    for asked, copies in ((requests, 5), (late, 1)):
        found = answers(engine, asked)
        assert_agrees(model, asked, found)
        assert reused(found) == copies * (len(prompt) - 1)


def test_an_untied_model_takes_no_weights_without_its_output_layer() -> None:
    from transformers import Qwen3ForCausalLM

    tied = tiny_model()
    tied.config.tie_word_embeddings = False
    untied = Qwen3ForCausalLM(tied.config).eval()
    weights = untied.state_dict()
    del weights["lm_head.weight"]
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        engine_of(untied, 2).load_weights(weights, "second")
    engine_of(tiny_model(), 2).load_weights(weights, "second")  # a tied one has it with the embedding


def test_an_engine_that_has_released_everything_is_as_new_to_the_bit() -> None:
    """So what is played from an empty queue depends on nothing that was played before it."""

    def after(engine: TransformersEngine) -> list[tuple[list[int], list[float], int]]:
        found = answers(engine, [ask(name, prompt, cache_key=name) for name, prompt in later.items()])
        return [(g.token_ids, g.logprobs, g.cached_tokens) for g in (found[name] for name in later)]

    short, *longer = some_prompts(9, seed=5)
    later = {"a": longer[0], "b": [*short[:-1], 17, 18], "c": short}  # b begins as c does, but for its end
    engine = engine_of(tiny_model(), 8)
    earlier = {"x": longer[1] * 4, "y": short} | {f"z{i}": prompt for i, prompt in enumerate(longer[2:])}
    answers(engine, [ask(name, prompt, cache_key=name) for name, prompt in earlier.items()])
    engine.release(list(earlier))
    assert after(engine) == after(engine_of(tiny_model(), 8))


@pytest.mark.parametrize("gather_cost", [1e-6, 1e6], ids=["gathered", "in place"])
@pytest.mark.parametrize("max_live", [1, 5, 16])
def test_random_traffic_with_shared_prefixes_evictions_and_releases_agrees_with_a_plain_pass(
    monkeypatch: pytest.MonkeyPatch, gather_cost: float, max_live: int
) -> None:
    monkeypatch.setattr(slots, "_GATHER_COST", gather_cost)
    monkeypatch.setattr(pipeline.engines.transformers, "PASS_TOKENS", 40)
    model = tiny_model()
    engine = engine_of(model, max_live)
    rng = random.Random(0)
    base = some_prompts(3, seed=8)
    asked: dict[str, GenerationRequest] = {}
    held: dict[str, list[int]] = {}
    found: dict[str, Generation] = {}
    how = {"stop_token_ids": (STOP, 2, 3)}
    for number in range(60):
        key = rng.choice([None, *"abcdefg"])
        prompt = held.get(key or "", rng.choice(base)) if rng.random() < 0.8 else rng.choice(base)
        name, new = f"r{number}", rng.randrange(1, 10)
        asked[name] = ask(name, prompt[:150], seed=number, cache_key=key, max_new_tokens=new, **how)
        engine.submit([asked[name]])
        if rng.random() < 0.5:
            for generation in engine.collect():
                found[generation.request_id] = generation
                request = asked[generation.request_id]
                if request.cache_key:
                    held[request.cache_key] = [*request.prompt_token_ids, *generation.token_ids, 7, 8]
        if rng.random() < 0.1:
            engine.release([rng.choice("abcdefg")])
    found |= answers(engine)
    assert set(found) == set(asked)
    assert_agrees(model, list(asked.values()), found)
    assert reused(found) > 0


def test_a_model_with_other_attention_is_refused() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        TransformersEngine(model, "p", 4)


@pytest.mark.parametrize(
    ("temperature", "shares", "said"),
    [
        (1.0, [0.5, 0.2, 0.0, 0.3], [0.5, 0.2, 0.0, 0.3]),
        (0.5, [0.25 / 0.38, 0.04 / 0.38, 0.0, 0.09 / 0.38], [0.25 / 0.38, 0.04 / 0.38, 0.0, 0.09 / 0.38]),
        (0.0, [1.0, 0.0, 0.0, 0.0], [0.5, 0.2, 0.0, 0.3]),  # the best, with its logprob under temperature 1
    ],
)
def test_shares_over_an_even_grid_of_uniform_numbers_are_the_probabilities(
    temperature: float, shares: list[float], said: list[float]
) -> None:
    number = 1000
    uniforms = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    logits = torch.tensor([0.5, 0.2, 0.0, 0.3]).log().expand(number, -1)
    tokens, logprobs = choose_tokens(logits, uniforms, torch.full((number,), temperature))
    assert (torch.bincount(tokens, minlength=4) / number).tolist() == pytest.approx(shares, abs=1e-3)
    assert logprobs.tolist() == pytest.approx([math.log(said[token]) for token in tokens], abs=1e-5)


def test_the_largest_uniform_number_never_takes_a_token_of_no_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf")]])
    tokens, _ = choose_tokens(logits, torch.tensor([1 - 2**-53], dtype=torch.float64), torch.ones(1))
    assert tokens.tolist() == [1]
