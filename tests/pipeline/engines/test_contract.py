"""What every engine promises, asked of each one."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.engines.transformers import TransformersEngine
from pipeline.engines.vllm import VllmEngine
from pipeline.engines.vllm_options import BLOCK_SIZE
from tests.pipeline.engines.helpers import (
    STOP,
    answers,
    ask,
    assert_agrees,
    reused,
    some_requests,
    tiny_model,
)

Make = Callable[[], Engine]
STOPS = (STOP, 5, 9)
"""Which are sampled often."""


def pseudo_reply(request: GenerationRequest) -> list[int]:
    seed = request.seed if request.temperature > 0 else "greedy"
    rng = random.Random(f"{seed}:{list(request.prompt_token_ids)}")
    return [rng.randrange(1, 20) for _ in range(request.max_new_tokens)]


@pytest.fixture(params=["scripted", "transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes an engine as new, with its first weights: a tiny model's in fp32.

    So no token depends on what is computed beside it.
    """
    made: list[Engine] = []

    def as_new() -> Engine:
        if request.param == "vllm":
            return request.getfixturevalue("vllm_engine")()  # type: ignore[no-any-return]
        if request.param == "scripted":
            made.append(ScriptedEngine(pseudo_reply, "first", max_per_collect=2, max_length=256))
        else:
            made.append(TransformersEngine(tiny_model(), "first", max_live=4))
        return made[-1]

    yield as_new
    for engine in made:
        engine.close()


def assert_same(first: Mapping[str, Generation], second: Mapping[str, Generation]) -> None:
    for name, generation in first.items():
        assert generation.token_ids == second[name].token_ids
        assert generation.logprobs == pytest.approx(second[name].logprobs, abs=1e-5)


def test_every_request_is_answered_once_also_those_added_between_collects(make: Make) -> None:
    engine = make()
    engine.submit(some_requests(5, "a"))
    first = [generation.request_id for generation in engine.collect()]
    found = answers(engine, some_requests(6, "b"))
    assert sorted([*first, *found]) == sorted([f"a{i}" for i in range(5)] + [f"b{i}" for i in range(6)])
    assert engine.collect() == []


def test_a_stop_token_ends_a_message_and_is_kept(make: Make) -> None:
    found = answers(make(), some_requests(12, stop_token_ids=STOPS, max_new_tokens=60))
    assert any(generation.finish_reason == "stop" for generation in found.values())
    for generation in found.values():
        assert not set(generation.token_ids[:-1]) & set(STOPS)
        assert (generation.token_ids[-1] in STOPS) == (generation.finish_reason == "stop")


def test_a_message_without_a_stop_token_ends_at_max_new_tokens_with_its_logprobs(make: Make) -> None:
    numbers = (1, 2, 9)
    found = answers(make(), [ask(f"r{n}", [3, 4], stop_token_ids=(), max_new_tokens=n) for n in numbers])
    for n in numbers:
        generation = found[f"r{n}"]
        assert (len(generation.token_ids), len(generation.logprobs)) == (n, n)
        assert generation.finish_reason == "length"
        assert all(-1e9 < value <= 0 for value in generation.logprobs)


def test_a_result_depends_on_its_request_and_not_on_its_company(make: Make) -> None:
    requests = some_requests(9)
    together = answers(make(), requests)
    assert_same(together, answers(make(), requests[::-1]))
    for request in requests:
        assert_same(answers(make(), [request]), together)


def test_other_seeds_give_other_messages_unless_they_are_greedy(make: Make) -> None:
    engine = make()

    def different(temperature: float) -> int:
        how = {"temperature": temperature, "stop_token_ids": ()}
        found = answers(engine, [ask(f"r{i}", [3, 4, 5], seed=i, **how) for i in range(8)])
        return len({tuple(generation.token_ids) for generation in found.values()})

    assert different(1.0) > 4
    assert different(0.0) == 1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_as_often_as_their_logprobs_say(make: Make, temperature: float) -> None:
    """600 draws of one token, under seeds as close together as seeds can be."""
    engine, number = make(), 600
    if isinstance(engine, ScriptedEngine):
        pytest.skip("a script is not drawn")
    how: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 1, "stop_token_ids": ()}
    found = answers(engine, [ask(f"r{i}", [3, 4, 5], seed=i, **how) for i in range(number)]).values()
    times = Counter(generation.token_ids[0] for generation in found)
    chances = {generation.token_ids[0]: math.exp(generation.logprobs[0]) for generation in found}
    for token, chance in chances.items():
        # 4.5 standard errors, and for rare tokens, whose number is not normal, a few draws more
        assert abs(times[token] - number * chance) <= 4.5 * math.sqrt(number * chance * (1 - chance)) + 3
    assert sum(chances.values()) <= 1 + 1e-3


def first_turn(engine: Engine) -> list[int]:
    """Plays one turn under the key `k`; returns the prompt of the second, 105 tokens of it cacheable."""
    prompt = [2 + i % 40 for i in range(100)]
    turn = answers(engine, [ask("t", prompt, cache_key="k", stop_token_ids=(), max_new_tokens=6)])["t"]
    assert turn.cached_tokens == 0
    return [*prompt, *turn.token_ids, 30, 31, 32]


@pytest.mark.parametrize("changed", [None, 70], ids=["as it was", "changed at 70"])
def test_the_next_turn_reuses_what_was_computed_up_to_the_first_change(
    make: Make, changed: int | None
) -> None:
    engine = make()
    second = first_turn(engine)
    if changed:
        second[changed] = 45
    with_cache = answers(engine, [ask("t", second, cache_key="k")])
    if not isinstance(engine, ScriptedEngine):  # which has no cache
        block = BLOCK_SIZE if isinstance(engine, VllmEngine) else 1
        assert reused(with_cache) == (changed or 105) // block * block
    assert_same(with_cache, answers(make(), [ask("t", second)]))


@pytest.mark.parametrize("how", ["release", "weights", "sleep"])
def test_dropped_caches_are_not_reused(make: Make, how: str) -> None:
    engine = make()
    second = first_turn(engine)
    if how == "release":
        engine.release(["k", "never seen"])
    elif how == "weights":
        engine.load_weights(tiny_model(seed=1).state_dict(), "second")
    else:
        engine.sleep()
    found = answers(engine, [ask("t", second, cache_key="k")])
    if how != "release" or not isinstance(engine, VllmEngine):  # which drops what is least recently used
        assert reused(found) == 0
    assert engine.policy_digest == ("second" if how == "weights" else "first")


@pytest.mark.parametrize("asleep", [False, True])
def test_new_weights_are_the_ones_that_sample(make: Make, asleep: bool) -> None:
    engine, requests = make(), some_requests(3, stop_token_ids=())
    if isinstance(engine, ScriptedEngine):
        pytest.skip("a script has no weights")
    assert_agrees(tiny_model(), requests, answers(engine, requests))
    if asleep:
        engine.sleep()
    engine.load_weights(tiny_model(seed=1).state_dict(), "second")
    assert_agrees(tiny_model(seed=1), requests, answers(engine, requests))


def test_an_engine_with_a_request_in_flight_takes_no_weights_and_does_not_sleep(make: Make) -> None:
    engine = make()
    engine.submit([ask("r", [3])])
    with pytest.raises(RuntimeError, match="in flight"):
        engine.load_weights(tiny_model(seed=1).state_dict(), "second")
    with pytest.raises(RuntimeError, match="in flight"):
        engine.sleep()
    assert engine.policy_digest == "first"


def test_a_malformed_or_too_long_request_is_refused_and_none_is_queued(make: Make) -> None:
    engine = make()
    for changes, word in (
        ({"prompt": []}, "empty prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"prompt": [3] * (engine.max_length - 11)}, f"'r' needs {engine.max_length + 1} positions"),
    ):
        with pytest.raises(ValueError, match=word):
            engine.submit([ask("fits", [3]), ask("r", **({"prompt": [3]} | changes))])
    assert engine.collect() == []


def test_an_id_in_flight_is_refused_and_may_be_used_again_later(make: Make) -> None:
    engine = make()
    engine.submit([ask("r", [3])])
    with pytest.raises(ValueError, match="in flight"):
        engine.submit([ask("r", [4])])
    assert len(engine.collect()) == 1
    assert set(answers(engine, [ask("r", [4])])) == {"r"}


def test_a_sleeping_engine_wakes_for_requests_and_samples_the_same(make: Make) -> None:
    engine, requests = make(), some_requests(6)
    before = answers(engine, requests)
    engine.sleep()
    engine.sleep()  # nothing more to free
    assert_same(before, answers(engine, requests))


def test_a_script_that_neither_stops_nor_fills_its_budget_is_refused() -> None:
    engine = ScriptedEngine(lambda request: [4, 5])
    engine.submit([ask("r", [3])])
    with pytest.raises(ValueError, match="no stop token"):
        engine.collect()


def test_closing_twice_is_allowed_and_drops_the_queue(make: Make) -> None:
    """The last test: vLLM takes long to start again."""
    engine = make()
    engine.submit([ask("r", [3])])
    engine.close()
    engine.close()
    assert engine.collect() == []
