"""Checks of `one_gpu` on hand-off, chain, DeepSpeed and files: each yields its rows as they are measured."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks._gpu import (
    LOSS,
    Where,
    empty,
    memory_figures,
    model_of,
    policy_rows_of,
    relative,
    seconds_of,
    trainer_of,
    used,
)
from benchmarks._gpu_speed import turn_figures
from benchmarks._results import Figure, Row, measured
from benchmarks._run import ROOT
from pipeline.engines import Generation, GenerationRequest
from pipeline.engines.transformers import TransformersEngine
from pipeline.hardware import free_gpu_memory
from pipeline.models.policy import load_policy, save_policy, weights_digest
from pipeline.models.tiny import train_tokenizer
from pipeline.planner.memory import GIB, step_phase, training_phase
from pipeline.ragged import run_packed
from pipeline.runs import MAIN_CHAIN
from pipeline.training.attention import Packing
from pipeline.training.policy_update import engine_trainer_gap
from stages.wiring.plan_models import training_of
from stages.wiring.refusals import MAX_LOGPROB_GAP

Sampled = list[tuple[Sequence[int], Generation]]


def hand_off(where: Where) -> Iterator[Row]:
    """The engine, which plays on the CPU, with weights that were trained here: digests, tokens, the probe."""
    config = where.config(
        "qwen3-0.6b", num_hidden_layers=2, hidden_size=128, intermediate_size=256, vocab_size=512,
        initializer_range=0.08, max_position_embeddings=256,
    )  # fmt: skip
    start = model_of(config, "cpu")
    engine = TransformersEngine(deepcopy(start), "start", max_live=32)
    for dtype in ("float32", "bfloat16"):
        trainer: Any = trainer_of(where, deepcopy(start), rate=1e-3, dtype=dtype)
        trainer.update(policy_rows_of(512, [50, 41, 33, 8]), LOSS)
        weights = trainer.weights()
        digest = weights_digest(weights)
        engine.load_weights(weights, digest)
        gap = engine_trainer_gap(trainer, sampled(engine, 1.0))
        limit = MAX_LOGPROB_GAP[dtype == "bfloat16"]
        figures = {"gap, nats a token": gap, "gap / limit of the probe": gap / limit}
        figures["digest is that of the copies"] = digest == weights_digest(
            {n: w.cpu() for n, w in weights.items()}
        )
        if dtype == "float32":
            figures["greedy tokens that are chosen here too"] = same_choice(trainer, sampled(engine, 0.0))
        yield from measured(f"hand-off, {dtype}", figures)
    engine.close()


def sampled(engine: TransformersEngine, temperature: float) -> Sampled:
    """Returns what an engine samples after a few prompts."""
    asked = [
        GenerationRequest(str(i), [7 * i % 512, 5, i], i, 48, (), temperature=temperature) for i in range(16)
    ]
    engine.submit(asked)
    found: dict[str, Generation] = {}
    while len(found) < len(asked):
        found |= {generation.request_id: generation for generation in engine.collect()}
    return [(request.prompt_token_ids, found[request.request_id]) for request in asked]


def same_choice(trainer: Any, greedy: Sampled) -> float:
    """Returns the share of greedy tokens that are the most probable ones where the trainer computes."""
    rows = [[*prompt, *generation.token_ids] for prompt, generation in greedy]
    model, device = trainer.model, next(trainer.model.parameters()).device
    with torch.inference_mode():
        packing = Packing([len(row) for row in rows], device)
        hidden = run_packed(
            model.base_model, torch.tensor([token for row in rows for token in row], device=device), packing
        )
        best = (hidden @ model.get_output_embeddings().weight.t()).argmax(-1).tolist()
    right = total = begin = 0
    for (prompt, generation), row in zip(greedy, rows, strict=True):
        first = begin + len(prompt) - 1
        right += sum(a == b for a, b in zip(best[first:], generation.token_ids, strict=False))
        total += len(generation.token_ids)
        begin += len(row)
    return right / total


CHAIN = (
    "run.rollouts_per_shard=64",
    "engine={max_live: 64}",
    "training={micro_batch_tokens: 4096}",
    "tasks={num_companies: 12, num_train: 24, num_held_out: 8, level_shares: {1: 1.0}}",
    "sft.practice_tasks=0",
    "sft.model={hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}",
    "sft.shares={oracle: 0.3, over_collector: 0.5, noisy_adaptive: 0.2}",
    *("sft.num_demonstrations=192", "sft.num_updates=150", "sft.batch_rows=16", "sft.learning_rate=1.0e-2"),
    "sampling.max_response_tokens=256",
    "rollouts.chain={num_attempts: 2, draws: 1, feedback_free_share: 0.25, feedback_free_draws: 4}",
    "labels={target: soft, kappa: 2, max_states: 24, num_continuations: 2}",
    *("critic.fit_share=0.5", "critic.validate_share=0.25", "critic.fit_continuations=false"),
    *("critic.head_updates=2", "critic.max_epochs=2", "critic.batch_states=64"),
    *("critic_report.tasks_per_split=8", "critic_report.fit_tasks=4"),
    *("critic_report.sibling_sets=4", "critic_report.probe_rollouts=8"),
    *("actor.num_iterations=2", "actor.tasks_per_update=4", "actor.updates_per_iteration=2"),
    "actor.evaluate_tasks=4",
    "actor.chain={num_attempts: 2, draws: 2, feedback_free_share: 0.5, feedback_free_draws: 4}",
    *("actor.checkpoint_every=1", "actor.credit.on_weak_critic=allow", "actor.credit.kl=1.0e-3"),
    "actor.credit.drift={react: never, paid_every: 4, states: 6, num_continuations: 3}",
)
"""Over configs/demo.yaml: everything in a minute or two. A policy of 60 thousand parameters learns little."""
FOLDER = Path(tempfile.gettempdir()) / "vdapo-one-gpu"


def chain(where: Where) -> Iterator[Row]:
    """Every stage by its command, trainers and critic on the GPU; the actor is killed once and goes on."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in MAIN_CHAIN:
        if name == "actor":
            code, seconds = stage(where, name, killed_at="actor.update.after:3")
            yield from measured("chain, actor killed", {"exit code": code, "seconds": seconds})
        code, seconds = stage(where, name)
        yield from measured(f"chain, {name}", {"exit code": code, "seconds": seconds})
        if code:
            raise SystemExit(f"stage {name} ended with {code}")


def refresh(where: Where) -> Iterator[Row]:
    """An actor that makes its critic as it starts: the stages of that want the GPU free, beside the actor."""
    change = ("actor.credit.drift.react=refresh_first", "actor.num_iterations=1")
    code, seconds = stage(where, "actor", "--fresh", *change)
    yield from measured("refresh, actor", {"exit code": code, "seconds": seconds})
    if code:
        raise SystemExit(f"an actor with a refresh ended with {code}")


def stage(where: Where, name: str, *settings: str, killed_at: str = "") -> tuple[int, float]:
    """Returns exit code and seconds of a stage's command; prints its last words if it failed."""
    command = [sys.executable, "-m", f"stages.{name}", "configs/demo.yaml", "--run", "r", *CHAIN, *settings]
    command.append(f"run.data_dir={json.dumps(str(FOLDER))}")
    if where.device == "cuda":
        command += ["hardware.num_gpus=1", f"hardware.gpu_memory_gib={wanted():.1f}"]
    environment = os.environ | ({"VDAPO_FAILPOINTS": f"{killed_at}=kill"} if killed_at else {})
    started = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    print(f"{name}: exit code {done.returncode}, {seconds:.1f} s", flush=True)
    if done.returncode and not killed_at:
        print(*done.stdout.splitlines()[-25:], sep="\n", flush=True)
    return done.returncode, seconds


@cache
def wanted() -> float:
    """Returns the GiB that must be free: as the configurations of 80 GB say, or all but a context or two."""
    return min(77.0, free_gpu_memory()[0] - 1)


class Watched:
    """The most bytes of the GPU that any processes hold, as seen every few milliseconds."""

    def __init__(self, device: str) -> None:
        self.most, self._device, self._ends = used(device), device, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ends.wait(0.005):
            self.most = max(self.most, used(self._device))

    def __enter__(self) -> "Watched":
        if self._device == "cuda":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()


def deepspeed(where: Where) -> Iterator[Row]:
    """The same updates by DeepSpeed on one rank and by torch's trainer, fp32."""
    config = where.config(
        "qwen3-0.6b", num_hidden_layers=2, hidden_size=128, intermediate_size=256, vocab_size=512
    )
    changes, losses = [], []
    for training in ({}, ranks("zero2_fp32", "float32")):
        trainer = trainer_of(where, model_of(config, "cpu"), rate=1e-3, **training)
        start = {name: weight.detach().cpu().clone() for name, weight in trainer.weights().items()}
        rows = policy_rows_of(512, [50, 41, 33, 8])
        losses.append([trainer.update(rows, LOSS)["loss"] for _ in range(3)])
        after = {name: weight.cpu().clone() for name, weight in trainer.weights().items()}
        changes.append({name: after[name] - start[name] for name in after})
        trainer.close()
    names = sorted(set(changes[0]) & set(changes[1]))
    ours, theirs = (torch.cat([change[name].flatten() for name in names]) for change in changes)
    figures = {
        "difference of three updates": relative(theirs, ours),
        "largest difference of a loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
    }
    yield from measured("deepspeed, tiny", figures)


def ranks(file: str, dtype: str) -> dict[str, Any]:
    """Returns the settings of one rank."""
    return {"backend": "deepspeed", "deepspeed": f"configs/deepspeed/{file}.json", "dtype": dtype}


def zero2(where: Where) -> Iterator[Row]:
    """Qwen3-1.7B's shape on one rank, everything on the GPU."""
    yield from of_ranks("deepspeed, 1.7B ZeRO 2", where, "zero2")


def zero3(where: Where) -> Iterator[Row]:
    """Qwen3-1.7B's shape on one rank, master weights and moments on the host."""
    yield from of_ranks("deepspeed, 1.7B ZeRO 3", where, "zero3_cpu_adam")


def of_ranks(variant: str, where: Where, file: str) -> Iterator[Row]:
    """Yields what a rank takes at its start and in an update, how fast it leaves, returns and hands over."""
    device, config = where.device, where.config("qwen3-1.7b")
    lengths = [where.row] * (2 * (where.tokens // where.row))
    rows = policy_rows_of(config.vocab_size, lengths)
    model = model_of(config, device).to("cpu")
    empty()
    began, started = used(device), time.perf_counter()  # with the context of this process
    figures: dict[str, Figure]
    with Watched(device) as watched, closing(trainer_of(where, model, **ranks(file, "bfloat16"))) as trainer:
        seconds = time.perf_counter() - started
        figures = {"seconds of start": seconds, "GiB at most while it starts": (watched.most - began) / GIB}
        yield from measured(variant, figures)
        trainer.update(rows, LOSS)
        watched.most = used(device)
        trainer.gpu_use()  # forgets the peak of the first
        seconds = seconds_of(lambda: trainer.update(rows, LOSS), device)
        peak = max((use.peak_gib for use in trainer.gpu_use()), default=math.nan)
        how = training_of(where.settings(**ranks(file, "bfloat16")), config, where.row)
        plan = training_phase(config, how)
        steps = [] if how.offload else [step_phase(plan, how.forward.on_gpu)]
        planned = max(phase.device_bytes for phase in (plan, *steps))
        figures = memory_figures(planned, peak * GIB)
        figures["GiB that the device gave away"] = (watched.most - began) / GIB
        yield from measured(variant, {**figures, "tokens a second": sum(lengths) / seconds})
        for turn in ("first", "second"):
            yield from measured(f"{variant}, {turn} turn", turn_figures(trainer, rows, device))
        handing = seconds_of(trainer.weights, device)
        size = sum(weight.nbytes for weight in trainer.weights().values())
        yield from measured(
            variant, {"seconds of a hand-off": handing, "GB/s of a hand-off": size / 1e9 / handing}
        )
    yield from measured(variant, {"left GiB after close": (used(device) - began) / GIB})


def files(where: Where) -> Iterator[Row]:
    """A policy of Qwen3-1.7B's shape: saved, digested from its files, read, digested on the GPU."""
    with tempfile.TemporaryDirectory(prefix="vdapo-") as name:
        folder = Path(name)
        model = model_of(where.config("qwen3-1.7b"), where.device)
        size = sum(parameter.nbytes for parameter in model.parameters()) / 1e9
        tokenizer = train_tokenizer(["a b c"], 300, folder, "")
        seconds = {"saving": seconds_of(lambda: save_policy(model, tokenizer, folder), where.device)}
        policies: list[Any] = []
        seconds["digest of files"] = seconds_of(lambda: policies.append(load_policy(folder)), where.device)
        yield from measured("policy, 1.7B", speeds(seconds, size))
        seconds = {"reading": seconds_of(lambda: policies[0].model, where.device)}
        seconds["moving to the GPU"] = seconds_of(lambda: policies[0].model.to(where.device), where.device)
        tensors: Mapping[str, torch.Tensor] = dict(model.named_parameters())
        seconds["digest"] = seconds_of(lambda: weights_digest(tensors), where.device)
        yield from measured("policy, 1.7B", {"GB": size, **speeds(seconds, size)})


def speeds(seconds: Mapping[str, float], size: float) -> dict[str, float]:
    """Returns GB/s of each."""
    return {f"GB/s of {name}": size / taken for name, taken in seconds.items()}
