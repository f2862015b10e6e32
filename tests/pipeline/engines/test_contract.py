"""What every engine promises, asked of each one."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine, common_prefix
from pipeline.engines.transformers import TransformersEngine
from pipeline.engines.vllm import VllmEngine
from pipeline.engines.vllm_options import BLOCK_SIZE
from pipeline.models.policy import Policy, load_policy
from tests.pipeline.engines.helpers import STOP, answers, ask, some_prompts, tiny_model


def pseudo_reply(request: GenerationRequest) -> list[int]:
    seed = request.seed if request.temperature > 0 else "greedy"
    rng = random.Random(f"{seed}:{list(request.prompt_token_ids)}")
    return [rng.randrange(1, 20) for _ in range(request.max_new_tokens)]


@dataclass(frozen=True)
class Subject:
    """An engine under test.

    Attributes:
        make: the engine as new, with its first weights.
        first_weights: these.
        other_weights: to replace them by.
        stops: three tokens that are sampled often.
        exact: fp32, so that no token depends on what is computed beside it.
    """

    make: Callable[[], Engine]
    first_weights: Callable[[], Mapping[str, torch.Tensor]] = lambda: tiny_model().state_dict()
    other_weights: Callable[[], Mapping[str, torch.Tensor]] = lambda: tiny_model(seed=1).state_dict()
    stops: tuple[int, ...] = (STOP, 5, 9)
    exact: bool = True

    @property
    def temperature(self) -> float:
        """Of messages to be sampled twice: among thousands of unlikely tokens any bit decides a draw."""
        return 1.0 if self.exact else 0.0


def scripted_engine() -> Engine:
    return ScriptedEngine(pseudo_reply, "first", max_per_collect=2)


def transformers_engine() -> Engine:
    return TransformersEngine(tiny_model(), "first", max_live=4)


@pytest.fixture(scope="module")
def smollm2_policy(smollm2: Path) -> Policy:
    return load_policy(smollm2)


def smollm2_subject(policy: Policy, make: Callable[[], Engine]) -> Subject:
    weights = {name: 0.9 * tensor for name, tensor in policy.model.state_dict().items()}
    stops = policy.tokenizer.convert_tokens_to_ids([",", ".", "Ġthe"])
    return Subject(make, policy.model.state_dict, lambda: weights, tuple(stops), exact=False)


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
    elif request.param == "smollm2 vllm":
        policy = request.getfixturevalue("smollm2_policy")
        weights, as_new = policy.model.state_dict(), request.getfixturevalue("vllm_engine")
        yield smollm2_subject(policy, lambda: as_new(policy.folder, weights, dtype="bfloat16", max_live=8))
    elif request.param == "smollm2 transformers":
        policy = request.getfixturevalue("smollm2_policy")
        yield smollm2_subject(policy, lambda: keep(smollm2_engine(policy)))
    else:
        make = scripted_engine if request.param == "scripted" else transformers_engine
        yield Subject(lambda: keep(make()))
    for engine in made:
        engine.close()


@pytest.fixture
def make_engine(subject: Subject) -> Callable[[], Engine]:
    return subject.make


def smollm2_engine(policy: Policy) -> Engine:
    return TransformersEngine(copy.deepcopy(policy.model), "first", 4, dtype="bfloat16", max_length=256)


def assert_same(subject: Subject, pairs: Sequence[tuple[Generation, Generation]]) -> None:
    """Checks that both of each pair are one message; in bf16 up to rounding, which may turn a close call."""
    if subject.exact:
        assert [left.token_ids for left, _ in pairs] == [right.token_ids for _, right in pairs]
    shared = [common_prefix(left.token_ids, right.token_ids) for left, right in pairs]
    assert sum(shared) > 0.5 * sum(len(left.token_ids) for left, _ in pairs)
    for (left, right), number in zip(pairs, shared, strict=True):
        tolerance = 1e-5 if subject.exact else 0.2
        assert left.logprobs[:number] == pytest.approx(right.logprobs[:number], abs=tolerance)


def block_of(engine: Engine) -> int:
    """Returns how many tokens an engine caches at a time."""
    return BLOCK_SIZE if isinstance(engine, VllmEngine) else 1


def test_every_request_is_answered_once_and_then_nothing_is_left(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    found = answers(engine, [ask(f"r{i}", prompt, seed=i) for i, prompt in enumerate(some_prompts(11))])
    assert set(found) == {f"r{i}" for i in range(11)}
    assert engine.collect() == []
    assert engine.counters.requests == 11
    assert engine.counters.generated_tokens == sum(len(found[name].token_ids) for name in found)


def test_requests_may_be_added_between_collects(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    engine.submit([ask(f"a{i}", prompt, seed=i) for i, prompt in enumerate(some_prompts(5))])
    first = [generation.request_id for generation in engine.collect()]
    found = answers(engine, [ask(f"b{i}", prompt, seed=i) for i, prompt in enumerate(some_prompts(5))])
    assert sorted([*first, *found]) == [f"{letter}{i}" for letter in "ab" for i in range(5)]


def test_a_stop_token_ends_a_message_and_is_kept(subject: Subject) -> None:
    stops = subject.stops
    requests = [
        ask(f"r{i}", prompt, seed=i, stop_token_ids=stops, max_new_tokens=60)
        for i, prompt in enumerate(some_prompts(12))
    ]
    found = answers(subject.make(), requests)
    assert any(generation.finish_reason == "stop" for generation in found.values())
    for generation in found.values():
        assert not set(generation.token_ids[:-1]) & set(stops)
        assert (generation.token_ids[-1] in stops) == (generation.finish_reason == "stop")


def test_a_message_without_a_stop_token_ends_at_max_new_tokens(make_engine: Callable[[], Engine]) -> None:
    found = answers(
        make_engine(), [ask(f"r{n}", [3, 4], stop_token_ids=(), max_new_tokens=n) for n in (1, 2, 9)]
    )
    assert [(len(found[f"r{n}"].token_ids), found[f"r{n}"].finish_reason) for n in (1, 2, 9)] == [
        (1, "length"),
        (2, "length"),
        (9, "length"),
    ]


def test_there_is_one_finite_logprob_per_token_and_none_is_positive(
    make_engine: Callable[[], Engine],
) -> None:
    for generation in answers(
        make_engine(), [ask(f"r{i}", p) for i, p in enumerate(some_prompts(6))]
    ).values():
        assert len(generation.logprobs) == len(generation.token_ids)
        assert all(-1e9 < value <= 0 for value in generation.logprobs)


def test_a_result_depends_on_its_request_and_not_on_its_company(subject: Subject) -> None:
    requests = [
        ask(f"r{i}", prompt, seed=i, temperature=subject.temperature)
        for i, prompt in enumerate(some_prompts(9))
    ]
    together = answers(subject.make(), requests)
    backwards = answers(subject.make(), requests[::-1])
    alone = {}
    for request in requests:
        alone |= answers(subject.make(), [request])
    assert_same(subject, [(together[name], alone[name]) for name in together])
    assert_same(subject, [(together[name], backwards[name]) for name in together])


def test_other_seeds_give_other_messages(make_engine: Callable[[], Engine]) -> None:
    found = answers(make_engine(), [ask(f"r{i}", [3, 4, 5], seed=i, stop_token_ids=()) for i in range(8)])
    assert len({tuple(generation.token_ids) for generation in found.values()}) > 4


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_as_often_as_their_logprobs_say(
    make_engine: Callable[[], Engine], temperature: float
) -> None:
    """600 draws of one token, under seeds as close together as seeds can be."""
    engine = make_engine()
    if isinstance(engine, ScriptedEngine):
        pytest.skip("a script is not drawn")
    number = 600
    found = answers(
        engine,
        [
            ask(f"r{i}", [3, 4, 5], seed=i, temperature=temperature, max_new_tokens=1, stop_token_ids=())
            for i in range(number)
        ],
    ).values()
    times = Counter(generation.token_ids[0] for generation in found)
    chances = {generation.token_ids[0]: math.exp(generation.logprobs[0]) for generation in found}
    for token, chance in chances.items():
        # 4.5 standard errors, and for rare tokens, whose number is not normal, a few draws more
        assert abs(times[token] - number * chance) <= 4.5 * math.sqrt(number * chance * (1 - chance)) + 3
    assert sum(chances.values()) <= 1 + 1e-3


def test_greedy_messages_do_not_depend_on_the_seed(make_engine: Callable[[], Engine]) -> None:
    found = answers(make_engine(), [ask(f"r{i}", [3, 4, 5], seed=i, temperature=0.0) for i in range(4)])
    assert len({tuple(generation.token_ids) for generation in found.values()}) == 1


def first_turn(engine: Engine) -> list[int]:
    """Plays one turn under the key `k`; returns the prompt of the second, 105 tokens of it cacheable."""
    prompt = [2 + i % 40 for i in range(100)]
    turn = answers(engine, [ask("turn 0", prompt, cache_key="k", stop_token_ids=(), max_new_tokens=6)])[
        "turn 0"
    ]
    assert engine.counters.cached_tokens == 0
    return [*prompt, *turn.token_ids, 30, 31, 32]


def test_the_next_turn_of_a_rollout_reuses_what_was_computed(subject: Subject) -> None:
    engine = subject.make()
    second = first_turn(engine)
    how = {"temperature": subject.temperature}
    with_cache = answers(engine, [ask("turn 1", second, cache_key="k", **how)])["turn 1"]
    assert engine.counters.cached_tokens == 105 // block_of(engine) * block_of(engine)
    assert with_cache.cached_tokens == engine.counters.cached_tokens
    assert engine.counters.prompt_tokens == 100 + 109
    without = answers(subject.make(), [ask("turn 1", second, **how)])["turn 1"]
    assert_same(subject, [(with_cache, without)])


def test_a_changed_prefix_is_reused_only_up_to_the_change(subject: Subject) -> None:
    engine = subject.make()
    second = first_turn(engine)
    second[70] = 45
    how = {"temperature": subject.temperature}
    changed = answers(engine, [ask("turn 1", second, cache_key="k", **how)])["turn 1"]
    assert engine.counters.cached_tokens == 70 // block_of(engine) * block_of(engine)
    assert_same(subject, [(changed, answers(subject.make(), [ask("turn 1", second, **how)])["turn 1"])])


def test_a_released_cache_is_not_reused(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    second = first_turn(engine)
    engine.release(["k", "never seen"])
    answers(engine, [ask("turn 1", second, cache_key="k")])
    if not isinstance(engine, VllmEngine):  # whose cache is by content: the least recently used goes first
        assert engine.counters.cached_tokens == 0


def test_new_weights_drop_the_caches_and_change_the_digest(subject: Subject) -> None:
    engine = subject.make()
    second = first_turn(engine)
    engine.load_weights(subject.other_weights(), "second")
    answers(engine, [ask("turn 1", second, cache_key="k")])
    assert (engine.counters.cached_tokens, engine.policy_digest) == (0, "second")


def test_an_engine_with_a_request_in_flight_takes_no_weights_and_does_not_sleep(subject: Subject) -> None:
    engine = subject.make()
    engine.submit([ask("r", [3])])
    with pytest.raises(RuntimeError, match="in flight"):
        engine.load_weights(subject.other_weights(), "second")
    with pytest.raises(RuntimeError, match="in flight"):
        engine.sleep()
    assert engine.policy_digest == "first"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"prompt": []}, "empty prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
    ],
)
def test_a_malformed_request_is_refused_by_name(
    make_engine: Callable[[], Engine], changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        make_engine().submit([ask("r", **({"prompt": [3]} | changes))])


def test_an_id_in_flight_is_refused_and_may_be_used_again_later(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    engine.submit([ask("r", [3])])
    with pytest.raises(ValueError, match="in flight"):
        engine.submit([ask("r", [4])])
    assert len(engine.collect()) == 1
    assert set(answers(engine, [ask("r", [4])])) == {"r"}


def test_a_sleeping_engine_wakes_for_requests_and_for_weights_and_samples_the_same(subject: Subject) -> None:
    engine, prompts = subject.make(), some_prompts(6)
    requests = [
        ask(f"r{i}", prompt, seed=i, cache_key=f"k{i}", temperature=subject.temperature)
        for i, prompt in enumerate(prompts)
    ]
    before = answers(engine, requests)
    for wake in ("requests", "weights"):
        engine.sleep()
        engine.sleep()  # nothing more to free
        if wake == "weights":
            engine.load_weights(subject.first_weights(), "first")
        after = answers(engine, requests)
        assert_same(subject, [(before[name], after[name]) for name in before])


def test_sleep_drops_the_caches(make_engine: Callable[[], Engine]) -> None:
    engine = make_engine()
    prompt = [2 + i % 40 for i in range(100)]
    for expected in ("none", "all", "none after sleep"):
        if "sleep" in expected:
            engine.sleep()
        cached = engine.counters.cached_tokens
        answers(engine, [ask("r", prompt, cache_key="k")])
        assert (engine.counters.cached_tokens > cached) == (expected == "all")


def test_a_script_that_neither_stops_nor_fills_its_budget_is_refused() -> None:
    engine = ScriptedEngine(lambda request: [4, 5])
    engine.submit([ask("r", [3])])
    with pytest.raises(ValueError, match="no stop token"):
        engine.collect()


def test_closing_twice_is_allowed_and_drops_the_queue(make_engine: Callable[[], Engine]) -> None:
    """The last test: vLLM takes long to start again."""
    engine = make_engine()
    engine.submit([ask("r", [3])])
    engine.close()
    engine.close()
    assert engine.collect() == []
