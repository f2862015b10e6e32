"""What every engine promises, asked of each one."""

import copy
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.engines.transformers import TransformersEngine
from pipeline.engines.vllm import VllmEngine
from pipeline.engines.vllm_options import BLOCK_SIZE
from pipeline.models.policy import Policy, load_policy
from tests.pipeline.engines.helpers import (
    STOP,
    answers,
    ask,
    assert_agrees,
    reused,
    some_requests,
    tiny_model,
)


def pseudo_reply(request: GenerationRequest) -> list[int]:
    seed = request.seed if request.temperature > 0 else "greedy"
    rng = random.Random(f"{seed}:{list(request.prompt_token_ids)}")
    return [rng.randrange(1, 20) for _ in range(request.max_new_tokens)]


@dataclass(frozen=True)
class Subject:
    """An engine under test."""

    make: Callable[[], Engine]  # as new, with its first weights
    first_weights: Callable[[], Mapping[str, torch.Tensor]] = lambda: tiny_model().state_dict()
    other_weights: Callable[[], Mapping[str, torch.Tensor]] = lambda: tiny_model(seed=1).state_dict()
    stops: tuple[int, ...] = (STOP, 5, 9)  # which are sampled often
    exact: bool = True  # fp32, so that no token depends on what is computed beside it

    @property
    def temperature(self) -> float:
        """Of messages to be sampled twice: among thousands of unlikely tokens any bit decides a draw."""
        return 1.0 if self.exact else 0.0


@pytest.fixture(scope="module")
def smollm2_policy(smollm2: Path) -> Policy:
    return load_policy(smollm2)


TINY = ("scripted", "transformers", pytest.param("vllm", marks=pytest.mark.slow))
SMOLLM2 = tuple(pytest.param(f"smollm2 {kind}", marks=pytest.mark.soak) for kind in ("transformers", "vllm"))


@pytest.fixture(params=[*TINY, *SMOLLM2])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Every engine with a tiny model in fp32, and those that run models with a real one in bf16."""
    made: list[Engine] = []

    def keep(engine: Engine) -> Engine:
        made.append(engine)
        return engine

    if request.param == "vllm":
        yield Subject(request.getfixturevalue("vllm_engine"))
    elif request.param == "scripted":
        yield Subject(lambda: keep(ScriptedEngine(pseudo_reply, "first", max_per_collect=2, max_length=256)))
    elif request.param == "transformers":
        yield Subject(lambda: keep(TransformersEngine(tiny_model(), "first", max_live=4)))
    else:
        policy = request.getfixturevalue("smollm2_policy")
        weights = policy.model.state_dict()
        others = {name: 0.9 * tensor for name, tensor in weights.items()}
        stops = policy.tokenizer.convert_tokens_to_ids([",", ".", "Ġthe"])
        as_new = request.getfixturevalue("vllm_engine") if request.param == "smollm2 vllm" else None

        def make() -> Engine:
            if as_new:
                return as_new(policy.folder, weights, dtype="bfloat16", max_live=8)
            return keep(TransformersEngine(copy.deepcopy(policy.model), "first", 4, dtype="bfloat16"))

        yield Subject(make, lambda: weights, lambda: others, tuple(stops), exact=False)
    for engine in made:
        engine.close()


def common_prefix(left: list[int], right: list[int]) -> int:
    differ = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differ, min(len(left), len(right)))


def assert_same(subject: Subject, first: Mapping[str, Generation], second: Mapping[str, Generation]) -> None:
    """Checks that all messages are the same; in bf16 up to rounding, which may turn a close call."""
    pairs = [(first[name], second[name]) for name in first]
    if subject.exact:
        assert [left.token_ids for left, _ in pairs] == [right.token_ids for _, right in pairs]
    shared = [common_prefix(left.token_ids, right.token_ids) for left, right in pairs]
    assert sum(shared) > 0.5 * sum(len(left.token_ids) for left, _ in pairs)
    for (left, right), number in zip(pairs, shared, strict=True):
        tolerance = 1e-5 if subject.exact else 0.2
        assert left.logprobs[:number] == pytest.approx(right.logprobs[:number], abs=tolerance)


def test_every_request_is_answered_once_and_then_nothing_is_left(subject: Subject) -> None:
    engine = subject.make()
    assert set(answers(engine, some_requests(11))) == {f"r{i}" for i in range(11)}
    assert engine.collect() == []


def test_requests_may_be_added_between_collects(subject: Subject) -> None:
    engine = subject.make()
    engine.submit(some_requests(5, "a"))
    first = [generation.request_id for generation in engine.collect()]
    found = answers(engine, some_requests(5, "b"))
    assert sorted([*first, *found]) == [f"{letter}{i}" for letter in "ab" for i in range(5)]


def test_a_stop_token_ends_a_message_and_is_kept(subject: Subject) -> None:
    stops = subject.stops
    found = answers(subject.make(), some_requests(12, stop_token_ids=stops, max_new_tokens=60))
    assert any(generation.finish_reason == "stop" for generation in found.values())
    for generation in found.values():
        assert not set(generation.token_ids[:-1]) & set(stops)
        assert (generation.token_ids[-1] in stops) == (generation.finish_reason == "stop")


def test_a_message_without_a_stop_token_ends_at_max_new_tokens_with_its_logprobs(subject: Subject) -> None:
    numbers = (1, 2, 9)
    found = answers(
        subject.make(), [ask(f"r{n}", [3, 4], stop_token_ids=(), max_new_tokens=n) for n in numbers]
    )
    for n in numbers:
        generation = found[f"r{n}"]
        assert (len(generation.token_ids), len(generation.logprobs)) == (n, n)
        assert generation.finish_reason == "length"
        assert all(-1e9 < value <= 0 for value in generation.logprobs)


def test_a_result_depends_on_its_request_and_not_on_its_company(subject: Subject) -> None:
    requests = some_requests(9, temperature=subject.temperature)
    together = answers(subject.make(), requests)
    backwards = answers(subject.make(), requests[::-1])
    alone = {}
    for request in requests:
        alone |= answers(subject.make(), [request])
    assert_same(subject, together, alone)
    assert_same(subject, together, backwards)


def test_other_seeds_give_other_messages_unless_they_are_greedy(subject: Subject) -> None:
    engine = subject.make()

    def different(temperature: float) -> int:
        how = {"temperature": temperature, "stop_token_ids": ()}
        found = answers(engine, [ask(f"r{i}", [3, 4, 5], seed=i, **how) for i in range(8)])
        return len({tuple(generation.token_ids) for generation in found.values()})

    assert different(1.0) > 4
    assert different(0.0) == 1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_as_often_as_their_logprobs_say(subject: Subject, temperature: float) -> None:
    """600 draws of one token, under seeds as close together as seeds can be."""
    engine, number = subject.make(), 600
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
    subject: Subject, changed: int | None
) -> None:
    engine = subject.make()
    second = first_turn(engine)
    if changed:
        second[changed] = 45
    how = {"temperature": subject.temperature}
    with_cache = answers(engine, [ask("t", second, cache_key="k", **how)])
    if not isinstance(engine, ScriptedEngine):  # which has no cache
        block = BLOCK_SIZE if isinstance(engine, VllmEngine) else 1
        assert reused(with_cache) == (changed or 105) // block * block
    assert_same(subject, with_cache, answers(subject.make(), [ask("t", second, **how)]))


@pytest.mark.parametrize("how", ["release", "weights", "sleep"])
def test_dropped_caches_are_not_reused(subject: Subject, how: str) -> None:
    engine = subject.make()
    second = first_turn(engine)
    if how == "release":
        engine.release(["k", "never seen"])
    elif how == "weights":
        engine.load_weights(subject.other_weights(), "second")
    else:
        engine.sleep()
    found = answers(engine, [ask("t", second, cache_key="k")])
    if how != "release" or not isinstance(
        engine, VllmEngine
    ):  # by content: the least recently used goes first
        assert reused(found) == 0
    assert engine.policy_digest == ("second" if how == "weights" else "first")


@pytest.mark.parametrize("asleep", [False, True])
def test_new_weights_are_the_ones_that_sample(subject: Subject, asleep: bool) -> None:
    engine, requests = subject.make(), some_requests(3, stop_token_ids=())
    if isinstance(engine, ScriptedEngine) or not subject.exact:
        pytest.skip("no plain pass says exactly what it should sample")
    assert_agrees(tiny_model(), requests, answers(engine, requests))
    if asleep:
        engine.sleep()
    engine.load_weights(subject.other_weights(), "second")
    assert_agrees(tiny_model(seed=1), requests, answers(engine, requests))


def test_an_engine_with_a_request_in_flight_takes_no_weights_and_does_not_sleep(subject: Subject) -> None:
    engine = subject.make()
    engine.submit([ask("r", [3])])
    with pytest.raises(RuntimeError, match="in flight"):
        engine.load_weights(subject.other_weights(), "second")
    with pytest.raises(RuntimeError, match="in flight"):
        engine.sleep()
    assert engine.policy_digest == "first"


def test_a_malformed_or_too_long_request_is_refused_and_none_is_queued(subject: Subject) -> None:
    engine = subject.make()
    for changes, word in (
        ({"prompt": []}, "empty prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"prompt": [3] * (engine.max_length - 11)}, f"'r' needs {engine.max_length + 1} positions"),
    ):
        with pytest.raises(ValueError, match=word):
            engine.submit([ask("fits", [3]), ask("r", **({"prompt": [3]} | changes))])
    assert engine.collect() == []


def test_an_id_in_flight_is_refused_and_may_be_used_again_later(subject: Subject) -> None:
    engine = subject.make()
    engine.submit([ask("r", [3])])
    with pytest.raises(ValueError, match="in flight"):
        engine.submit([ask("r", [4])])
    assert len(engine.collect()) == 1
    assert set(answers(engine, [ask("r", [4])])) == {"r"}


def test_a_sleeping_engine_wakes_for_requests_and_for_weights_and_samples_the_same(subject: Subject) -> None:
    engine = subject.make()
    requests = some_requests(6, temperature=subject.temperature)
    before = answers(engine, requests)
    for wake in ("requests", "weights"):
        engine.sleep()
        engine.sleep()  # nothing more to free
        if wake == "weights":
            engine.load_weights(subject.first_weights(), "first")
        assert_same(subject, before, answers(engine, requests))


def test_a_script_that_neither_stops_nor_fills_its_budget_is_refused() -> None:
    engine = ScriptedEngine(lambda request: [4, 5])
    engine.submit([ask("r", [3])])
    with pytest.raises(ValueError, match="no stop token"):
        engine.collect()


def test_closing_twice_is_allowed_and_drops_the_queue(subject: Subject) -> None:
    """The last test: vLLM takes long to start again."""
    engine = subject.make()
    engine.submit([ask("r", [3])])
    engine.close()
    engine.close()
    assert engine.collect() == []
