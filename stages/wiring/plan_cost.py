"""What the stages take at most of a disk, and at least of time."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from pipeline.planner.gpus import GPUS
from pipeline.planner.memory import Shape
from stages.settings import Config
from stages.wiring.plan_memory import Memory
from stages.wiring.plan_work import Work, work_of

STORED_BYTES = 4.2  # of one token in Parquet: id 0.9, log-probability 3.3


CHECKPOINT_BYTES, EXPORT_BYTES = 12, 4  # of a parameter: fp32 weight and two moments; fp32 weight


def stored_models(work: Work, shapes: Mapping[str, Shape]) -> float:
    """Returns the GB of a stage's model and, if it trains, of the two checkpoints that stay beside it."""
    kind = {"sft": "policy", "actor": "policy", "critic": "critic", "refresh": "critic"}.get(work.stage)
    if kind is None:
        return 0.0
    checkpoints = 2 * CHECKPOINT_BYTES if work.trained_tokens else 0
    size = (checkpoints + EXPORT_BYTES) * shapes[kind].parameters
    if work.stage == "refresh":  # the actor that it is made for, exported and adopted
        size += 2 * EXPORT_BYTES * shapes["policy"].parameters
    return work.times * size / 1e9


def least_hours(
    work: Work, config: Config, shapes: Mapping[str, Shape], live: int, context: int
) -> float | None:
    """Returns a lower bound: arithmetic at the data sheet's speed, decoding at its memory bandwidth."""
    shape, trained = shapes["policy"], shapes["critic" if work.stage in ("critic", "refresh") else "policy"]
    hardware = config.hardware
    if not (hardware.num_gpus and hardware.gpu):
        return None
    gpu, engine = GPUS[hardware.gpu], config.engine
    replicas, split = (engine.replicas, engine.tensor_parallel) if engine.kind == "vllm" else (1, 1)
    flops = hardware.num_gpus * gpu.tflops * 1e12
    train = work.trained_tokens * trained.training_flops(context, recompute=config.training.recompute) / flops
    element = 2 if engine.dtype == "bfloat16" else 4
    steps = work.sampled_tokens / max(1, live * replicas)
    read = shape.parameters * element + live * context / 2 * shape.cache_bytes(element)
    decode = steps * read / (gpu.bandwidth_gbs * 1e9 * split)
    return (train + max(decode, work.sampled_tokens * 2 * shape.matmul_parameters / flops)) / 3600


def cost_table(config: Config, shapes: Mapping[str, Shape], memory: Memory, context: int) -> Table:
    """Returns rollouts, tokens, disk and hours of every stage, as a table for people."""
    table = Table(
        "stage",
        "rollouts",
        "sampled tokens",
        "trained tokens",
        "GB on disk",
        "hours",
        title="at most; hours: at least",
    )
    rows = [
        (
            work,
            work.sampled_tokens * STORED_BYTES / 1e9 + stored_models(work, shapes),
            least_hours(work, config, shapes, memory.live, context),
        )
        for work in work_of(config)
    ]
    for work, disk, hours in rows:
        table.add_row(
            work.stage,
            f"{work.rollouts:,}",
            f"{work.sampled_tokens:,}",
            f"{work.trained_tokens:,}",
            f"{disk:.2f}",
            "-" if hours is None else f"{hours:.2f}",
        )
    known = [hours for _, _, hours in rows if hours is not None]
    table.add_row(
        "all",
        f"{sum(work.rollouts for work, _, _ in rows):,}",
        f"{sum(work.sampled_tokens for work, _, _ in rows):,}",
        f"{sum(work.trained_tokens for work, _, _ in rows):,}",
        f"{sum(disk for _, disk, _ in rows):.2f}",
        f"{sum(known):.2f}" if known else "-",
    )
    return table
