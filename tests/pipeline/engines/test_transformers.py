"""What only the transformers engine promises: its numbers are a plain pass's, its caches change nothing."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from pipeline.engines import Generation, GenerationRequest
from pipeline.engines import slots as slots_module
from pipeline.engines.transformers import TransformersEngine
from tests.pipeline.engines.helpers import STOP, VOCAB, answers, ask, assert_agrees, some_prompts, tiny_model


@pytest.mark.parametrize("gather_cost", [1e-6, 1e6], ids=["gathered", "in place"])
@pytest.mark.parametrize("max_live", [1, 3, 16])
def test_logprobs_agree_with_a_plain_forward_pass_over_turns(
    monkeypatch: pytest.MonkeyPatch, gather_cost: float, max_live: int
) -> None:
    monkeypatch.setattr(slots_module, "_GATHER_COST", gather_cost)
    model = tiny_model()
    engine = TransformersEngine(copy.deepcopy(model), "p", max_live, max_pass_tokens=64)
    prompts = some_prompts(14, seed=3)
    prompts[5] = prompts[6] = prompts[2]  # a group
    rng = random.Random(1)
    for turn in range(3):
        requests = [
            ask(
                f"{i}:{turn}", prompt, seed=i * 10 + turn, stop_token_ids=(STOP, 2, 3, 4, 5), cache_key=str(i)
            )
            for i, prompt in enumerate(prompts)
        ]
        found = answers(engine, requests)
        assert_agrees(model, requests, found)
        for i, prompt in enumerate(prompts):
            reply = [rng.randrange(2, VOCAB) for _ in range(rng.randrange(1, 12))]
            prompts[i] = [*prompt, *found[f"{i}:{turn}"].token_ids, *reply]
    if max_live == 16:  # nothing was evicted: every turn after the first computed only what was new
        assert engine.counters.cached_tokens > 0.6 * engine.counters.prompt_tokens


def test_logprobs_are_those_of_the_temperature_and_of_one_for_greedy() -> None:
    model = tiny_model()
    engine = TransformersEngine(copy.deepcopy(model), "p", 8)
    requests = [ask(f"r{t}", [3, 4, 5], temperature=t, stop_token_ids=()) for t in (0.0, 0.5, 1.0, 2.0)]
    found = answers(engine, requests)
    assert_agrees(model, requests, found)
    greedy = found["r0.0"].token_ids
    with torch.inference_mode():
        logits = model(torch.tensor([[3, 4, 5, *greedy]])).logits[0]
    assert greedy == logits[2:-1].argmax(-1).tolist()


def test_equal_prompts_are_computed_once() -> None:
    model = tiny_model()
    prompt = some_prompts(1, seed=5)[0] * 3
    requests = [ask(f"r{i}", prompt, seed=i, cache_key=str(i)) for i in range(6)]
    engine = TransformersEngine(copy.deepcopy(model), "p", 8)
    found = answers(engine, requests)
    assert_agrees(model, requests, found)
    assert engine.counters.cached_tokens == 5 * (len(prompt) - 1)
    late = [ask("late", prompt, seed=9)]  # what a slot still holds is as good as what it computes now
    assert_agrees(model, late, answers(engine, late))
    assert engine.counters.cached_tokens == 6 * (len(prompt) - 1)


def test_an_engine_that_has_released_everything_is_as_new_to_the_bit() -> None:
    """So what is played from an empty queue depends on nothing that was played before it."""

    def after(engine: TransformersEngine) -> tuple[list[tuple[list[int], list[float]]], int]:
        before = engine.counters.cached_tokens
        asked = [ask(name, prompt, seed=7, cache_key=name) for name, prompt in later.items()]
        found = answers(engine, asked)
        return [(found[name].token_ids, found[name].logprobs) for name in later], (
            engine.counters.cached_tokens - before
        )

    short, *longer = some_prompts(9, seed=5)
    later = {"a": longer[0], "b": [*short[:-1], 17, 18], "c": short}  # b begins as c does, but for its end
    engine = TransformersEngine(tiny_model(), "p", 8)
    earlier = {"x": longer[1] * 4, "y": short} | {f"z{i}": prompt for i, prompt in enumerate(longer[2:])}
    answers(engine, [ask(name, prompt, cache_key=name) for name, prompt in earlier.items()])
    engine.release(list(earlier))
    assert after(engine) == after(TransformersEngine(tiny_model(), "p", 8))


def test_random_traffic_with_shared_prefixes_evictions_and_releases_agrees() -> None:
    model = tiny_model()
    engine = TransformersEngine(copy.deepcopy(model), "p", 5, max_pass_tokens=40)
    rng = random.Random(0)
    base = some_prompts(3, seed=8)
    asked: dict[str, GenerationRequest] = {}
    held: dict[str, list[int]] = {}
    found: dict[str, Generation] = {}
    for number in range(60):
        name = f"r{number}"
        key = rng.choice([None, *"abcdefg"])
        prompt = held.get(key or "", rng.choice(base)) if rng.random() < 0.8 else rng.choice(base)
        asked[name] = ask(
            name,
            prompt[:150],
            seed=number,
            cache_key=key,
            max_new_tokens=rng.randrange(1, 10),
            stop_token_ids=(STOP, 2, 3),
        )
        engine.submit([asked[name]])
        if rng.random() < 0.5:
            for generation in engine.collect():
                found[generation.request_id] = generation
                request = asked[generation.request_id]
                if request.cache_key:
                    held[request.cache_key] = [*request.prompt_token_ids, *generation.token_ids, 7, 8]
        if rng.random() < 0.1:
            engine.release([rng.choice("abcdefg")])
    while generations := engine.collect():
        found |= {generation.request_id: generation for generation in generations}
    assert set(found) == set(asked)
    assert_agrees(model, list(asked.values()), found)
    assert engine.counters.cached_tokens > 0


@pytest.mark.parametrize("sleeps", [False, True])
def test_new_weights_are_the_ones_that_sample(sleeps: bool) -> None:
    engine = TransformersEngine(tiny_model(0), "first", 4)
    request = ask("r", [3, 4, 5], stop_token_ids=())
    before = answers(engine, [request])["r"]
    if sleeps:
        engine.sleep()
    other = tiny_model(1)
    engine.load_weights(other.state_dict(), "second")
    after = answers(engine, [request])["r"]
    assert before.logprobs != pytest.approx(after.logprobs, abs=1e-3)
    assert_agrees(other, [request], {"r": after})


def test_a_request_longer_than_the_model_is_refused_and_none_is_queued() -> None:
    engine = TransformersEngine(tiny_model(), "first", max_live=4)
    with pytest.raises(ValueError, match="needs 257 positions"):
        engine.submit([ask("fits", [3]), ask("long", [3] * 250, max_new_tokens=7)])
    assert engine.collect() == []


def test_a_model_with_other_attention_is_refused() -> None:
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding_attention"):
        TransformersEngine(model, "p", 4)
