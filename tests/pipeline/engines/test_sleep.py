"""An engine that sleeps gives the same tokens when it is woken, by requests or by weights."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.engines import Engine, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.engines.transformers import TransformersEngine
from pipeline.engines.vllm import VllmEngine, VllmOptions
from tests.pipeline.engines.helpers import answers, ask, assert_agrees, some_prompts, tiny_model


def pseudo_reply(request: GenerationRequest) -> list[int]:
    rng = random.Random(f"{request.seed}:{list(request.prompt_token_ids)}")
    return [rng.randrange(1, 20) for _ in range(request.max_new_tokens)]


def vllm_engine(folder: Path, replicas: int = 1) -> VllmEngine:
    pytest.importorskip("vllm", reason="make setup-engines installs it")
    tiny_model().save_pretrained(folder)
    options = VllmOptions(dtype="float32", max_live=8, kv_cache_gib=0.25, replicas=replicas)
    return VllmEngine(folder, "first", 256, options)


@pytest.fixture(params=["scripted", "transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    make: dict[str, Callable[[], Engine]] = {
        "scripted": lambda: ScriptedEngine(pseudo_reply, "first"),
        "transformers": lambda: TransformersEngine(tiny_model(), "first", max_live=4),
        "vllm": lambda: vllm_engine(tmp_path / "policy"),
    }
    engine = make[request.param]()
    yield engine
    engine.close()


REQUESTS = [ask(f"r{i}", prompt, seed=i, cache_key=f"k{i}") for i, prompt in enumerate(some_prompts(6))]


def test_a_sleeping_engine_wakes_for_requests_and_for_weights_and_samples_the_same(engine: Engine) -> None:
    before = answers(engine, REQUESTS)
    engine.sleep()
    engine.sleep()  # nothing more to free
    assert answers(engine, REQUESTS) == before
    engine.sleep()
    engine.load_weights(tiny_model().state_dict(), "first")
    assert answers(engine, REQUESTS) == before


def test_sleep_drops_the_caches(engine: Engine) -> None:
    prompt = [2 + i % 40 for i in range(100)]
    for expected in ("none", "all", "none after sleep"):
        if "sleep" in expected:
            engine.sleep()
        cached = engine.counters.cached_tokens
        answers(engine, [ask("r", prompt, cache_key="k")])
        assert (engine.counters.cached_tokens > cached) == (expected == "all")


def test_an_engine_with_requests_in_flight_does_not_sleep(engine: Engine) -> None:
    engine.submit(REQUESTS)
    with pytest.raises(RuntimeError, match="in flight"):
        engine.sleep()
    while engine.collect():
        pass


def test_new_weights_wake_a_model_that_samples_them() -> None:
    engine = TransformersEngine(tiny_model(), "first", max_live=4)
    engine.sleep()
    engine.load_weights(tiny_model(1).state_dict(), "second")
    assert_agrees(tiny_model(1), REQUESTS, answers(engine, REQUESTS))


@pytest.mark.slow
def test_a_replica_that_dies_asleep_is_started_again_with_the_weights_it_had(tmp_path: Path) -> None:
    engine = vllm_engine(tmp_path / "policy", replicas=2)
    try:
        engine.sleep()
        engine.load_weights(tiny_model(1).state_dict(), "second")
        assert_agrees(tiny_model(1), REQUESTS, answers(engine, REQUESTS))
        for wake in ("requests", "weights"):
            engine.sleep()
            os.kill(engine._replicas[0].worker.pid, signal.SIGKILL)
            if wake == "weights":
                engine.load_weights(tiny_model(2).state_dict(), "third")
            model = tiny_model(2 if wake == "weights" else 1)
            assert_agrees(model, REQUESTS, answers(engine, REQUESTS))
        os.kill(engine._replicas[1].worker.pid, signal.SIGKILL)  # awake: sleep must not leave one running
        engine.sleep()
        assert {replica.state for replica in engine._replicas} == {"asleep"}
    finally:
        engine.close()
