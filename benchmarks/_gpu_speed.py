"""Checks of `one_gpu` on speed: what compiled layers change, one rank's pass of 8B, and changes of turns."""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch

import pipeline.training.network as network
from benchmarks._gpu import (
    LOSS,
    PEAK,
    Where,
    empty,
    model_of,
    peak_of,
    policy_rows_of,
    seconds_of,
    trainer_of,
    used,
)
from benchmarks._gpu_models import trained
from benchmarks._results import Figure, Row, measured
from pipeline.planner.memory import GIB
from pipeline.planner.operations import forward_operations, head_operations
from pipeline.training.network import Network
from pipeline.training.packing import Batch, micro_batches, summed


def fused(where: Where) -> Iterator[Row]:
    """Log-probabilities of Qwen3-1.7B's shape in bf16, layers compiled or not: scoring, training, fp32."""
    exact, _ = both_passes(where, "float32", compiled=False)
    reference = None
    for compiled in (False, True):
        scored, seen = both_passes(where, "bfloat16", compiled=compiled)
        reference = scored if reference is None else reference
        gaps = {"training": seen, "layers that are not compiled": reference, "fp32": exact}
        yield from measured(
            f"scoring in bf16, {'compiled' if compiled else 'not compiled'}",
            {f"nats to {name}": float((scored - other).abs().mean()) for name, other in gaps.items()},
        )


def both_passes(where: Where, dtype: str, *, compiled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities by scoring, and those that an update sees, of the same weights."""
    torch.compiler.reset()
    model = model_of(where.config("qwen3-1.7b"), where.device)
    with patch.object(network, "pays", lambda _: compiled):
        trainer = trainer_of(where, model, rate=0.0, dtype=dtype)
    rows = policy_rows_of(model.config.vocab_size, [where.row, where.row // 2, where.row // 3, 7])
    found: dict[int, torch.Tensor] = {}

    def watched(outputs: Any, batch: Batch) -> Any:
        pairs = batch.unpacked({"logprobs": outputs["logprobs"]})
        found.update((i, torch.as_tensor(of["logprobs"])) for i, of in pairs)
        return LOSS(outputs, batch)

    trainer.update(rows, watched)
    scored = torch.cat([torch.as_tensor(of["logprobs"]) for of in trainer.forward(rows)])
    asked = torch.cat([torch.as_tensor(row.columns["weight"] != 0) for row in rows])
    seen = torch.cat([found[i] for i in range(len(rows))])
    del trainer, model
    empty()
    return scored[asked], seen[asked]


def one_rank(where: Where) -> Iterator[Row]:
    """Forward and backward passes of Qwen3-8B's shape as one of 8 ranks has them; no exchange, no step."""
    config = where.config("qwen3-8b")
    model = model_of(config, where.device).to(torch.bfloat16)
    for recompute, tokens in ((True, where.tokens), (False, where.tokens // 2), (False, where.tokens // 4)):
        torch.compiler.reset()
        passes = Network(model, head="policy", recompute=recompute, compute_dtype="bfloat16")
        rows = policy_rows_of(config.vocab_size, [where.row] * (where.tokens // where.row))
        variant = f"one rank, 8B, {'recomputed' if recompute else 'kept'}, {tokens:,} tokens"
        yield from measured(variant, passes_figures(passes, rows, tokens, where))


def passes_figures(passes: Network, rows: Sequence[Any], tokens: int, where: Where) -> dict[str, Figure]:
    """Returns time, memory and model FLOP utilisation of rows' passes in micro-batches of so many tokens."""

    def work() -> None:
        batches = (batch.to(where.device) for batch in micro_batches(rows, tokens))
        summed(batches, passes, LOSS, torch.Tensor.backward)
        passes.zero_grad(set_to_none=False)  # they are added up, as ranks do

    first = seconds_of(work, where.device)
    seconds = [seconds_of(work, where.device) for _ in range(2)]
    peak, _ = peak_of(work, where.device)
    config = passes.model.config
    number = sum(len(row.token_ids) for row in rows)
    operations = 3 * (forward_operations(config, where.row) + head_operations(config) * 2 / 3) * number
    return {
        "seconds": min(seconds),
        "seconds of the first": first,
        "tokens a second": number / min(seconds),
        "model FLOP utilisation": operations / min(seconds) / PEAK[torch.bfloat16],
        "peak GiB": peak / GIB,
    }


def plain(where: Where) -> Iterator[Row]:
    """What `full` measures, of layers that are not compiled."""
    with patch.object(network, "pays", lambda _: False):
        yield from trained("trainer, 1.7B, not compiled", where, "qwen3-1.7b", batches=4, dtype="bfloat16")


def turns(where: Where) -> Iterator[Row]:
    """A trainer of Qwen3-1.7B's shape leaves the GPU and comes back, twice: speed, and the same numbers."""
    config = where.config("qwen3-1.7b")
    trainer = trainer_of(where, model_of(config, where.device), dtype="bfloat16")
    rows = policy_rows_of(config.vocab_size, [where.row])
    trainer.update(rows, LOSS)
    before = trainer.forward(rows)[0]["logprobs"]
    for turn in ("first", "second"):
        yield from measured(f"trainer, 1.7B, {turn} turn", turn_figures(trainer, rows, where.device))
    after = trainer.forward(rows)[0]["logprobs"]
    yield from measured("trainer, 1.7B, second turn", {"the same to the bit": bool((before == after).all())})


def turn_figures(trainer: Any, rows: Sequence[Any], device: str) -> dict[str, Figure]:
    """Returns how fast a trainer leaves the GPU and comes back."""
    trainer.forward(rows[:1])  # layers are compiled, and memory for a pass is taken
    alone, held = seconds_of(lambda: trainer.forward(rows[:1]), device), used(device)
    leaving, left = seconds_of(trainer.offload, device), used(device)
    returning = seconds_of(lambda: trainer.forward(rows[:1]), device) - alone
    moved = (held - left) / 1e9
    return {
        "GB": moved,
        "seconds of leaving": leaving,
        "GB/s of leaving": moved / leaving,
        "seconds of returning": returning,
        "GB/s of returning": moved / returning,
    }
