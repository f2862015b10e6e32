"""Seconds in which an engine starts, starts again after a kill, and takes new weights.

    python -m benchmarks.engine_starts  # about 10 minutes on two CPU cores; needs make setup-engines

With a model of 113 million random weights. What is compared takes turns, five times each; ratios are
between runs of one turn.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._engines import CONFIG, ask_all, configured
from benchmarks._offline_vllm import offline_options, start_offline
from benchmarks._results import Criteria, Row, measured, ratios, spread
from benchmarks._run import ROOT, Asked, Benchmark, in_turns, main, timed
from pipeline.config import load_config
from pipeline.engines import GenerationRequest
from stages.settings import Config

CRITERIA: Criteria = {
    "hand-off: at most a quarter of a restart": lambda t: (
        t("hand-off", "seconds by memory") <= t("start", "seconds after a kill") / 4
    ),
}


def large_model(folder: Path) -> Any:
    """Returns a Qwen3 of 113 million random weights, which also lies in the folder."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.planner import config

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config())
    model.save_pretrained(folder)
    return model


def one_token(engine: Any, name: str) -> None:
    """Samples one token, so the engine is at work when this returns."""
    ask_all(engine, [GenerationRequest(name, [5, 6, 7], 0, 1, ())])


def starts(folder: Path, config: Config, repeats: int) -> list[Row]:
    """Returns seconds to the first token: of an engine, of one whose replica is killed, of vLLM's LLM."""
    from pipeline.engines.vllm import VllmEngine, VllmOptions

    options = VllmOptions(dtype="float32", max_live=config.engine.max_live)
    offline = offline_options(folder, configured(config, "vllm"), 1024)
    found: dict[str, list[float]] = {"of an engine": [], "after a kill": [], "of LLM": []}
    for _ in range(repeats):
        started = time.perf_counter()
        engine = VllmEngine(folder, "first", 1024, options)
        one_token(engine, "first")
        found["of an engine"].append(time.perf_counter() - started)
        os.kill(engine._replicas[0].worker.pid, signal.SIGKILL)
        found["after a kill"].append(timed(lambda engine=engine: one_token(engine, "second"))())  # type: ignore[misc]
        engine.close()
        started = time.perf_counter()
        worker = start_offline(offline)
        worker.send(([[5, 6, 7]], 1))
        worker.receive(600)
        found["of LLM"].append(time.perf_counter() - started)
        worker.close()
    figures = {f"seconds {name}": spread(seconds) for name, seconds in found.items()}
    return measured(
        "start", figures | {"engine / LLM": ratios(found["of an engine"], found["of LLM"])}, repeats
    )


def hand_off(folder: Path, model: Any, repeats: int) -> list[Row]:
    """Returns seconds of handing all weights over, beside the least copies in memory and by a file."""
    from safetensors.torch import load_file, save_file

    from pipeline.engines.vllm import VllmEngine, VllmOptions

    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    engine = VllmEngine(folder, "first", 1024, VllmOptions(dtype="float32", kv_cache_gib=0.25))

    def copy_in_memory() -> None:
        for tensor in weights.values():
            tensor.clone().copy_(tensor)  # written once, and once more where the model lies

    def copy_on_disk() -> None:
        with tempfile.TemporaryDirectory(prefix="vdapo-copy-") as name:
            save_file(weights, Path(name) / "copy.safetensors")
            for tensor in load_file(Path(name) / "copy.safetensors").values():
                tensor.clone()

    runs = {
        "memory": timed(lambda: engine.load_weights(weights, "again")),
        "two copies in memory": timed(copy_in_memory),
        "file written, read and copied": timed(copy_on_disk),
    }
    try:
        found = in_turns(runs, repeats)
    finally:
        engine.close()
    figures = {f"seconds by {name}": spread(seconds) for name, seconds in found.items()}
    figures["memory / two copies in memory"] = ratios(found["memory"], found["two copies in memory"])
    return measured("hand-off", figures, repeats)


def measure(asked: Asked) -> list[Row]:
    """Returns seconds of hand-offs and of starts."""
    repeats = asked.options.repeats
    with tempfile.TemporaryDirectory(prefix="vdapo-large-") as name:
        model = large_model(Path(name))
        config = load_config(Config, ROOT / CONFIG, asked.settings)
        return hand_off(Path(name), model, repeats) + starts(Path(name), config, repeats)


BENCHMARK = Benchmark("engine_starts", __doc__, measure, CRITERIA, options={"repeats": 5})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
