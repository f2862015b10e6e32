"""How fast engines sample and take weights: whole chains, single turns, and the hand-off.

    python -m benchmarks.engine_speed   # about 15 minutes on two CPU cores; needs make setup-engines

- chains: rollouts and tokens a second of each engine on the same tasks;
- single turns of one length: the queues against `LLM.generate` and transformers' `generate` (one padded
  batch);
- hand-off: seconds in which vLLM takes 113 million weights, beside the least copies in memory.

What is compared takes turns, five times each; ratios are between runs of one turn.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._engines import Bench, Recorder, ask_all, policy_in, prepared
from benchmarks._offline_vllm import offline_options, start_offline
from benchmarks._results import Criteria, Row, at_least, measured, ratios, spread
from benchmarks._run import Asked, Benchmark, in_turns, main, timed
from pipeline.engines import GenerationRequest

SINGLE_TURNS, NEW_TOKENS = 512, 32
CRITERIA: Criteria = {
    "vLLM behind the queue: at least 0.9 of LLM.generate": at_least(
        0.9, "single turns", "vllm / LLM.generate"
    ),
    "transformers engine: at least transformers' generate": at_least(
        1.0, "single turns", "transformers / model.generate"
    ),
}


def chains(bench: Bench, repeats: int) -> list[Row]:
    """Returns rollouts and sampled tokens a second on whole chains."""
    speeds: dict[str, list[list[float]]] = {kind: [] for kind in bench.players}
    for repeat in range(repeats):
        for kind, found in speeds.items():
            bench.forget(kind)
            started = time.perf_counter()
            rollouts = bench.play(kind, iteration=1 + repeat)
            seconds = time.perf_counter() - started
            found.append([len(rollouts) / seconds, sum(r.num_trainable_tokens for r in rollouts) / seconds])
    rows = []
    for kind, found in speeds.items():
        played, sampled = zip(*found, strict=True)
        rows += measured(
            kind, {"rollouts a second": spread(played), "tokens a second": spread(sampled)}, repeats
        )
    ours, peers = ([found[0] for found in speeds[kind]] for kind in ("vllm", "transformers"))
    return rows + measured("chains", {"vllm / transformers": ratios(ours, peers)}, repeats)


def generate_padded(model: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> int:
    """Returns the tokens that transformers' generate samples for prompts padded on the left."""
    import torch

    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
        )
    return len(prompts) * (found.shape[1] - longest)


def single_turns(bench: Bench, prompts: Sequence[Sequence[int]], repeats: int) -> list[Row]:
    """Returns tokens a second on single turns of one length: both queues, and what stands behind them."""
    engine = bench.players["vllm"].engine
    worker = start_offline(offline_options(bench.folder, bench.config, engine.max_length))
    model, plain = policy_in(bench.folder).model, [list(prompt) for prompt in prompts]

    def of_queue(kind: str) -> float:
        bench.forget(kind)
        asked = [GenerationRequest(f"single{i}", prompt, i, NEW_TOKENS, ()) for i, prompt in enumerate(plain)]
        started = time.perf_counter()
        found = ask_all(bench.players[kind].engine, asked)
        return sum(len(made.token_ids) for made in found.values()) / (time.perf_counter() - started)

    def of_llm() -> float:
        worker.send((plain, NEW_TOKENS))
        seconds, tokens = worker.receive(600)
        return float(tokens / seconds)

    def of_generate() -> float:
        started = time.perf_counter()
        tokens = generate_padded(model, plain, NEW_TOKENS)
        return tokens / (time.perf_counter() - started)

    runs: dict[str, Callable[[], float]] = {
        "vllm": lambda: of_queue("vllm"),
        "LLM.generate": of_llm,
        "transformers": lambda: of_queue("transformers"),
        "model.generate": of_generate,
    }
    try:
        speeds = in_turns(runs, repeats)
    finally:
        worker.close()
    pairs = (("vllm", "LLM.generate"), ("transformers", "model.generate"))
    figures = {f"tokens a second, {name}": spread(found) for name, found in speeds.items()}
    figures |= {f"{left} / {right}": ratios(speeds[left], speeds[right]) for left, right in pairs}
    return measured("single turns", figures, repeats)


def hand_off(folder: Path, repeats: int) -> list[Row]:
    """Returns seconds of handing the weights of a Qwen3 over, beside the least copies in memory."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.planner import config
    from pipeline.engines.vllm import VllmEngine, VllmOptions

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config())
    model.save_pretrained(folder)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    engine = VllmEngine(folder, "first", 1024, VllmOptions(dtype="float32", kv_cache_gib=0.25))

    def copy_in_memory() -> None:
        for tensor in weights.values():
            tensor.clone().copy_(tensor)  # written once, and once more where the model lies

    runs = {
        "memory": timed(lambda: engine.load_weights(weights, "again")),
        "two copies in memory": timed(copy_in_memory),
    }
    try:
        found = in_turns(runs, repeats)
    finally:
        engine.close()
    figures = {f"seconds by {name}": spread(seconds) for name, seconds in found.items()}
    figures["memory / two copies in memory"] = ratios(found["memory"], found["two copies in memory"])
    return measured("hand-off", figures, repeats)


def measure(asked: Asked) -> list[Row]:
    """Returns speeds on whole chains and on single turns, and seconds of hand-offs."""
    repeats = asked.options.repeats
    with prepared(asked) as bench:
        recorder = Recorder(bench.players["vllm"].engine)
        bench.play("vllm", iteration=0, engine=recorder)
        prompts = [request.prompt_token_ids for request in recorder.requests.values()]
        several = prompts[:: max(1, len(prompts) // 500)][:SINGLE_TURNS]
        rows = chains(bench, repeats) + single_turns(bench, several, repeats)
    with tempfile.TemporaryDirectory(prefix="vdapo-large-") as name:
        return rows + hand_off(Path(name), repeats)


BENCHMARK = Benchmark("engine_speed", __doc__, measure, CRITERIA, options={"tasks": 96, "repeats": 5})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
