"""Checks of `one_gpu` on attention, critic and trainer: each yields its rows as they are measured."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch

from benchmarks._gpu import (
    LOSS,
    PEAK,
    Where,
    empty,
    memory_figures,
    model_of,
    peak_of,
    policy_rows_of,
    relative,
    seconds_of,
    trainer_of,
    used,
    wait,
)
from benchmarks._results import Figure, Row, measured
from critics.frozen.contract import Contract
from critics.frozen.critic import FrozenCritic, read_value_logits
from pipeline.models.policy import weights_digest
from pipeline.planner.activations import Forward
from pipeline.planner.memory import GIB, scoring_phase, training_phase
from pipeline.planner.operations import forward_operations, head_operations
from pipeline.ragged import ATTENTION_NAME
from pipeline.training.attention import Packing
from stages.wiring.plan_models import training_of

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def attention(where: Where) -> Iterator[Row]:
    """Kernel, memory, speed and agreement of packed attention, as trainer (bf16) and critic (fp32) use it."""
    few = [300, 257, 64, 1] if where.device == "cuda" else [30, 25, 6, 1]
    for dtype in (torch.float32, torch.bfloat16):
        yield from measured(
            f"attention, {NAMES[dtype]}", {"largest error": attention_error(few, dtype, where)}
        )
    shapes = [(where.tokens // where.row, where.row), (2, where.tokens // 2), (1, where.tokens)]
    for dtype, heads in ((torch.bfloat16, 32), (torch.float32, 16)):
        for rows, length in shapes:
            variant = f"attention, {NAMES[dtype]}, {rows} x {length:,}"
            yield from measured(variant, attention_figures([length] * rows, dtype, heads, where))
            empty()


def drawn(
    number: int, heads: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns queries, keys and values of so many tokens, with 8 heads of keys."""

    def made(heads: int) -> torch.Tensor:
        return torch.randn(1, heads, number, 128, device=device, dtype=dtype).requires_grad_()

    return made(heads), made(8), made(8)


def kernels_of(work: Callable[[], object], device: str) -> list[str]:
    """Returns the names of the attention kernels that something launches; prints them too."""
    if device != "cuda":
        work()
        return []
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    names = {event.key for event in found.key_averages()}
    shown = sorted(
        n for n in names if any(word in n.lower() for word in ("flash", "fmha", "attention", "softmax"))
    )
    print("kernels:", *(name[:110] for name in shown), sep="\n  ", flush=True)
    return shown


def attention_error(lengths: Sequence[int], dtype: torch.dtype, where: Where) -> float:
    """Returns the largest relative error of output and gradients against whole matrices in float64."""
    torch.manual_seed(1)
    ours = drawn(sum(lengths), 16, dtype, where.device)
    theirs = [tensor.detach().double().cpu().requires_grad_() for tensor in ours]
    mixed = Packing(lengths, where.device).attend(0, *ours, 128**-0.5)
    parts, start = [], 0
    for length in lengths:
        query, key, value = (tensor[0, :, start : start + length] for tensor in theirs)
        key, value = (tensor.repeat_interleave(2, 0) for tensor in (key, value))
        scores = query @ key.transpose(1, 2) * 128**-0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        parts.append((scores.masked_fill(hidden, -math.inf).softmax(-1) @ value).transpose(0, 1))
        start += length
    reference = torch.cat(parts)[None]
    mix = torch.randn_like(reference)
    found = torch.autograd.grad((mixed * mix.to(mixed)).sum(), ours)
    expected = torch.autograd.grad((reference * mix).sum(), theirs)
    return max(relative(a, b) for a, b in zip([mixed, *found], [reference, *expected], strict=True))


def attention_figures(
    lengths: Sequence[int], dtype: torch.dtype, heads: int, where: Where
) -> dict[str, Figure]:
    """Returns what one layer's attention takes over rows, forward and backward."""
    tensors = drawn(sum(lengths), heads, dtype, where.device)
    packing = Packing(lengths, where.device)

    def forward() -> torch.Tensor:
        return packing.attend(0, *tensors, 128**-0.5)

    def both() -> None:
        torch.autograd.grad(forward().sum(), tensors)

    def alone() -> None:
        with torch.inference_mode():
            forward()

    both()
    (with_gradient, before), (scoring, _) = peak_of(both, where.device), peak_of(alone, where.device)
    scores = sum(heads * length**2 * dtype.itemsize for length in lengths)
    repeats = where.pick(5, 1)

    def several(work: Callable[[], object]) -> float:
        return seconds_of(lambda: [work() for _ in range(repeats)], where.device) / repeats

    seconds = [several(work) for work in (alone, both)]
    operations = [times * sum(2 * heads * 128 * length**2 for length in lengths) for times in (1, 3.5)]
    names = " ".join(kernels_of(both, where.device)).lower()
    return {
        "flash kernel": "flash" in names,
        "memory-efficient kernel": "fmha" in names or "efficient" in names,
        "peak GiB, scoring": (scoring - before) / GIB,
        "peak GiB, training": (with_gradient - before) / GIB,
        "whole matrices GiB": scores / GIB,
        "peak / whole matrices": (with_gradient - before) / scores,
        "ms, scoring": 1000 * seconds[0],
        "ms, training": 1000 * seconds[1],
        "tokens a second, training": sum(lengths) / seconds[1],
        "share of peak, scoring": operations[0] / seconds[0] / PEAK[dtype],
        "share of peak, training": operations[1] / seconds[1] / PEAK[dtype],
    }


def classifier(config: Any, device: str) -> Any:
    """Returns a critic's network with random weights and head, ready to score."""
    from transformers import AutoModelForSequenceClassification

    config.num_labels = 2
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    model.set_attn_implementation(ATTENTION_NAME)
    return model.eval().requires_grad_(False)


def critic(where: Where) -> Iterator[Row]:
    """Scoring by the frozen critic of the 8B configurations: as on a CPU, memory, speed, what it leaves."""
    few = where.config("qwen3-0.6b", num_hidden_layers=2, vocab_size=1000)
    rows = policy_rows_of(90, [where.row, where.row // 2, 7])
    at = [np.array([0, len(row.token_ids) // 2, len(row.token_ids) - 1]) for row in rows]
    on_cpu = classifier(few, "cpu")
    scores = [
        np.concatenate(read_value_logits(model, rows, at, where.tokens))
        for model in (on_cpu, classifier(few, "cpu").to(where.device))
    ]
    yield from measured("critic", {"largest difference from CPU": float(np.abs(scores[0] - scores[1]).max())})
    empty()
    began = used(where.device)
    config = where.config("qwen3-0.6b")
    model = classifier(config, where.device)
    rows = policy_rows_of(
        config.vocab_size, [where.row - i % 7 for i in range(4 * (where.tokens // where.row))]
    )
    at = [np.arange(len(row.token_ids) // 3, len(row.token_ids), 5) for row in rows]

    def score() -> None:
        read_value_logits(model, rows, at, where.tokens)

    score()
    peak, _ = peak_of(score, where.device)
    rate = sum(len(row.token_ids) for row in rows) / seconds_of(score, where.device)
    how = Forward(where.filled, where.row, on_gpu=where.device == "cuda")
    planned = scoring_phase(config, how).device_bytes
    held, no_contract = used(where.device), cast(Contract, None)  # no value is asked for
    FrozenCritic(model, no_contract, "", where.tokens).close()
    empty()
    operations = forward_operations(config, where.row) * rate
    yield from measured(
        "critic",
        memory_figures(planned, peak)
        | {
            "tokens a second": rate,
            "share of fp32 peak": operations / PEAK[torch.float32],
            "held GiB": (held - began) / GIB,
            "left GiB after close": (used(where.device) - began) / GIB,
        },
    )


def agreement(where: Where) -> Iterator[Row]:
    """The same updates of a tiny model here and on a CPU, fp32."""
    config = where.config(
        "qwen3-0.6b", num_hidden_layers=2, hidden_size=128, intermediate_size=256, vocab_size=512
    )
    changes, losses = [], []
    for device in ("cpu", where.device):
        trainer = trainer_of(Where(device, where.quick), model_of(config, "cpu"), rate=1e-3)
        start = {name: weight.detach().cpu().clone() for name, weight in trainer.weights().items()}
        rows = policy_rows_of(512, [50, 41, 33, 8])
        losses.append([trainer.update(rows, LOSS) for _ in range(3)])
        changes.append(torch.cat([(w.cpu() - start[n]).flatten() for n, w in trainer.weights().items()]))
    yield from measured(
        "trainer, tiny",
        {
            "difference of three updates": relative(changes[1], changes[0]),
            "largest difference of a loss": max(
                abs(a["loss"] - b["loss"]) for a, b in zip(*losses, strict=True)
            ),
            "largest difference of a gradient's norm, relative": max(
                abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(*losses, strict=True)
            ),
        },
    )


def full(where: Where) -> Iterator[Row]:
    """Full fine-tuning of Qwen3-1.7B's shape by torch's trainer, bf16 products, and what it leaves."""
    yield from trained("trainer, 1.7B", where, "qwen3-1.7b", batches=4, dtype="bfloat16")


def adapters(where: Where) -> Iterator[Row]:
    """Adapters of Qwen3-8B's shape by torch's trainer, bf16 products of fp32 weights, and what it leaves."""
    yield from trained("trainer, 8B adapters", where, "qwen3-8b", batches=2, dtype="bfloat16", lora_rank=16)


def trained(variant: str, where: Where, name: str, *, batches: int, **training: Any) -> Iterator[Row]:
    """Yields what an update takes against its plan, then what a hand-off and `close` do."""
    device, config = where.device, where.config(name)
    wait(device)
    began, rank = used(device), training.get("lora_rank", 0)
    trainer = trainer_of(where, model_of(config, device), **training)
    lengths = [where.row] * (batches * (where.tokens // where.row))
    rows = policy_rows_of(config.vocab_size, lengths)
    first = seconds_of(lambda: trainer.update(rows, LOSS), device)
    found: list[dict[str, float]] = []
    seconds = []

    def update() -> None:
        seconds.append(seconds_of(lambda: found.append(trainer.update(rows, LOSS)), device))

    peak, _ = peak_of(update, device)
    rate = sum(lengths) / seconds[0]
    head = head_operations(config) * 2 / 3  # of the tokens that are trained
    operations = (2 if rank else 3) * (forward_operations(config, where.row) + head)
    plan = training_phase(config, training_of(where.settings(**training), config, where.row))
    yield from measured(
        variant,
        memory_figures(plan.device_bytes, peak)
        | {
            "seconds of an update": seconds[0],
            "seconds of the first update": first,
            "tokens a second": rate,
            "model FLOP utilisation": operations * rate / PEAK[torch.bfloat16],
            "loss is finite": all(math.isfinite(x["loss"]) and math.isfinite(x["grad_norm"]) for x in found),
        },
    )
    largest, before = peak_of(lambda: [float(w.sum()) for w in trainer.weights().values()], device)
    yield from measured(variant, {"GiB more while weights are handed over": (largest - before) / GIB})
    if not rank:
        size = sum(w.nbytes for w in trainer.weights().values())
        yield from measured(
            variant,
            {"digest GB/s": size / 1e9 / seconds_of(lambda: weights_digest(trainer.weights()), device)},
        )
    held = used(device)
    closing = seconds_of(trainer.close, device)
    yield from measured(
        variant,
        {
            "held GiB": (held - began) / GIB,
            "left GiB after close": (used(device) - began) / GIB,
            "seconds of close": closing,
            "close GB/s": (held - used(device)) / 1e9 / closing,
        },
    )
