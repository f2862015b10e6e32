"""The queue before vLLM's replicas: room, deaths, full pipes. vLLM itself is a stand-in here."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

import pipeline.engines.vllm
from pipeline.artifacts.signals import StopFlag, StopRequested
from pipeline.config import load_config
from pipeline.engines.vllm import MAX_RESTARTS, VllmEngine, VllmOptions
from pipeline.engines.vllm_replica import GPU_BATCH_TOKENS, options_of_gpus
from pipeline.errors import ConfigError, ExitCode
from pipeline.processes.life import LIMIT, LIMITS, Scope, Signs, workers_of
from pipeline.processes.worker import Worker, WorkerDiedError, WorkerFailedError, WorkerHungError
from stages.settings import Config
from tests.pipeline.engines.helpers import answers, ask

ROOT = Path(__file__).parents[3]
MakeEngine = Callable[..., VllmEngine]


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MakeEngine]:
    """Makes an engine over the stand-in; `faults` are its environment, options those of the engine."""
    engines: list[VllmEngine] = []

    def make(limit: int = 100_000, faults: dict[str, str] | None = None, **options: Any) -> VllmEngine:
        def start(module: str, name: str, *, env: dict[str, str]) -> Worker:
            paths = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
            return Worker("tests.pipeline.engines.scripted_replica", name, env=env | paths | (faults or {}))

        monkeypatch.setattr(pipeline.engines.vllm, "Worker", start)
        engines.append(VllmEngine(tmp_path, "first", limit, VllmOptions(**options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def test_replicas_have_room_for_the_longest_row_and_not_for_the_models_limit(make_engine: MakeEngine) -> None:
    """vLLM refuses to start unless its cache holds one row of the length that it is started for."""
    engine = make_engine(limit=40_960, faults={"FAKE_ROOM": "4096"}, max_length=2560)
    found = answers(engine, [ask("r", [3] * 2048, max_new_tokens=512)])
    assert len(found["r"].token_ids) == 512
    assert engine.max_length == 40_960  # episodes end where the model's positions do, on any engine
    with pytest.raises(ConfigError, match=r"'long' needs 2561 .* started for 2560.*prompt\.max_feedback"):
        engine.submit([ask("short", [3]), ask("long", [3] * 2049, max_new_tokens=512)])
    assert engine.collect() == []
    with pytest.raises(ValueError, match="40961 positions"):
        engine.submit([ask("longer", [3], max_new_tokens=40_960)])


def test_the_longest_row_follows_from_the_budgets() -> None:
    path = ROOT / "configs" / "phone-qwen3-0.6b-1gpu.yaml"
    assert load_config(Config, path, []).row_tokens == 1024 + 1024 + 1600
    longer = ["sampling.max_response_tokens=2000", "prompt.max_feedback_tokens=3000"]
    assert load_config(Config, path, longer).row_tokens == 1024 + 3000 + 2000


@pytest.mark.timeout(120)
def test_results_that_nobody_reads_yet_do_not_keep_a_replica_from_reading(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    """Both ends would wait for ever: a pipe holds some 200 KB, the results and the requests are megabytes."""
    stepped = tmp_path / "stepped"
    engine = make_engine(faults={"FAKE_STEPS": str(stepped)})
    answers(engine, [ask("first", [3])])  # it is ready from here on
    stepped.unlink()
    engine.submit([ask(f"a{i}", [3], max_new_tokens=4000) for i in range(64)])
    while not stepped.exists():
        time.sleep(0.01)
    found = answers(engine, [ask(f"b{i}", list(range(20_000))) for i in range(64)])
    assert len(found) == 128


def test_replicas_are_closed_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each may take seconds to end, and a stage that was told to stop has few."""
    together = Barrier(3)

    def start(*_: object, **__: object) -> Any:
        return SimpleNamespace(
            signs=Signs(), send=lambda message: None, close=lambda: together.wait(timeout=30)
        )

    monkeypatch.setattr(pipeline.engines.vllm, "Worker", start)
    VllmEngine(tmp_path, "first", 100, VllmOptions(replicas=3)).close()
    assert not together.broken


def test_a_pass_on_a_gpu_has_room_for_prompts_and_for_a_token_of_each_sequence() -> None:
    """vLLM's own default for this way of starting it, 2,048, is not the one of `vllm.LLM`."""
    assert options_of_gpus(4096, 256, VllmOptions())["max_num_batched_tokens"] == GPU_BATCH_TOKENS == 8192
    assert options_of_gpus(4096, 9000, VllmOptions())["max_num_batched_tokens"] == 9000


def test_a_replica_that_refuses_to_start_is_a_defect_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(limit=40_960, faults={"FAKE_ROOM": "4096"})
    engine.submit([ask("r", [3])])
    with pytest.raises(WorkerFailedError, match="a row of 40960 tokens is larger than the cache") as raised:
        engine.collect()
    assert raised.value.code == ExitCode.DEFECT
    assert engine._restarts_left == MAX_RESTARTS


@pytest.mark.parametrize(
    ("at", "how"),
    [
        ("step", "hang"),
        ("load", "stop"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("load", "hang"), ("sleep", "stop")]),
    ],
)
def test_a_replica_that_stops_answering_ends_the_engine_with_a_word_on_where(
    at: str, how: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another would cost as long again; the stage's next start has them all anew."""
    monkeypatch.setitem(LIMITS, "load", LIMIT)
    monkeypatch.setitem(LIMITS, "start", 60 * LIMIT)
    (tmp_path / "config.json").write_text("{}")
    with workers_of(Scope(tmp_path, patience=1 / LIMIT)):
        engine = make_engine(faults={"VDAPO_FAILPOINTS": f"replica.{at}:2={how}"}, replicas=2)
        with pytest.raises(WorkerHungError) as raised:
            work_twice(engine)
    doing = "generate" if at == "step" else at
    assert re.match(rf"vLLM replica 0 .* gave no sign of life for 1 s in {doing}: ", str(raised.value))
    assert raised.value.code == ExitCode.STOPPED
    assert str(tmp_path / "vLLM-replica-0.log") in str(raised.value)
    assert engine._restarts_left == MAX_RESTARTS


@pytest.mark.parametrize("at", ["load", "step"])
def test_a_stop_is_heard_while_a_replica_loads_or_computes(
    at: str, make_engine: MakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with StopFlag().installed():
        engine = make_engine(faults={"VDAPO_FAILPOINTS": f"replica.{at}:2=hang"})
        work_once(engine, 0)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(StopRequested):
            work_once(engine, 1)


def test_a_stop_is_heard_while_a_replica_starts(make_engine: MakeEngine) -> None:
    with StopFlag().installed():
        engine = make_engine()
        signal.raise_signal(signal.SIGTERM)
        engine.submit([ask("r", [3])])
        with pytest.raises(StopRequested):
            engine._await_ready(engine._replicas[0])


def work_twice(engine: VllmEngine) -> None:
    for number in range(2):
        work_once(engine, number)


def work_once(engine: VllmEngine, number: int) -> None:
    engine.load_weights({}, "second")
    answers(engine, [ask(f"r{number}", [3])])
    engine.sleep()


def test_a_replica_that_takes_many_steps_is_not_hung(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "start", 60 * LIMIT)
    with workers_of(Scope(None, patience=3 / LIMIT)):
        engine = make_engine(faults={"FAKE_SLOW": "40"})
        assert len(answers(engine, [ask("r", [3])])) == 1


@pytest.mark.parametrize(
    ("fault", "said", "code"),
    [
        pytest.param(
            "raise", "RuntimeError: an assertion of the engine", ExitCode.DEFECT, marks=pytest.mark.slow
        ),
        ("kill", "was killed by SIGKILL", ExitCode.STOPPED),
    ],
)
def test_replicas_that_keep_dying_end_with_what_the_last_death_was(
    fault: str, said: str, code: ExitCode, make_engine: MakeEngine
) -> None:
    engine = make_engine(faults={"FAKE_FAULT": fault})
    engine.submit([ask("r", [3])])
    with pytest.raises(WorkerDiedError, match=said) as raised:
        engine.collect()
    assert raised.value.code == code
    assert engine._restarts_left == 0
