"""Says whether a configuration fits its hardware, and what it would cost at least: `vdapo plan CONFIG`.

Takes no GPU, no memory and no data: the model exists as shapes only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.config import load_config
from pipeline.errors import ExitCode
from pipeline.planner.memory import GIB, Shape, shape_of
from stages.settings import Config
from stages.wiring.plan_advice import advice, unused_gpus
from stages.wiring.plan_cost import cost_table
from stages.wiring.plan_memory import Memory, memory_of
from stages.wiring.plan_models import critic_config, model_config


def no_room_for_a_row(config: Config, memory: Memory, shape: Shape, limit: int) -> str | None:
    """Returns what to say if vLLM would not start: its cache must hold one row of the engine's length.

    Args:
        config: all settings.
        memory: what they take.
        shape: of the policy.
        limit: positions that the policy has.
    """
    if config.engine.kind != "vllm":
        return None
    [generation] = [phase for phase in memory.phases if phase.name == "generation"]
    element = 2 if config.engine.dtype == "bfloat16" else 4
    per_token = shape.cache_bytes(element) / config.engine.tensor_parallel
    room = int(generation.device["key-value cache"] // per_token)
    wanted = min(config.row_tokens, limit)
    if wanted <= room:
        return None
    more = "engine.memory_share" if config.hardware.num_gpus else "engine.kv_cache_gib"
    return (
        f"generation: the cache holds {room:,} tokens, one row may take {wanted:,}; raise {more}, or lower "
        "sampling.max_response_tokens or prompt.max_feedback_tokens"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("config", type=Path, help="a YAML, such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")


def run(options: argparse.Namespace) -> int:
    """Prints the plan of a configuration; returns 0 if it fits, else 2."""
    config = load_config(Config, options.config, options.overrides)
    policy = model_config(config)
    critic = critic_config(config, policy)
    context = min(
        config.sampling.max_response_tokens + config.prompt.max_feedback_tokens,
        int(policy.max_position_embeddings),
    )
    shapes = {"policy": shape_of(policy), "critic": shape_of(critic)}
    memory = memory_of(config, policy, critic, context)
    console = Console()
    for name, shape in shapes.items():
        console.print(
            f"{name}: {shape.parameters:,} parameters, {shape.layers} layers of width {shape.width}; keys "
            f"and values of a token {shape.cache_bytes(2):,} bytes in bf16"
        )
    console.print(
        f"rows of {context:,} tokens at most, besides a task's own prompt; {memory.live} of them alive in a "
        "replica"
    )
    console.print(_memory_table(memory))
    for line in _other_way(config, policy, critic, context):
        console.print(line)
    console.print(cost_table(config, shapes, memory, context))
    misfits = unused_gpus(config)
    if said := no_room_for_a_row(config, memory, shapes["policy"], int(policy.max_position_embeddings)):
        misfits.append(said)
    for phase in memory.phases:
        if not memory.fits(phase):
            misfits.append(f"{phase.name}: {advice(config, policy, critic, context, phase.name)}")
    for line in misfits:
        console.print(f"does not fit: {line}", style="bold")
    return ExitCode.CONFIG if misfits else ExitCode.COMPLETE


def _memory_table(memory: Memory) -> Table:
    limit = f"of {memory.limit / GIB:.1f}"
    table = Table("phase", "GiB", limit, "parts", title="memory of each GPU or process")
    for phase in memory.phases:
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in phase.device.items())
        if phase.host:
            held = ", ".join(f"{name} {size / GIB:.0f}" for name, size in phase.host.items())
            parts += f"; in host memory {sum(phase.host.values()) / GIB:.0f}: {held}"
        fits = "fits" if memory.fits(phase) else "DOES NOT FIT"
        table.add_row(phase.name, f"{phase.device_bytes / GIB:.2f}", fits, parts)
    return table


def _other_way(config: Config, policy: Any, critic: Any, context: int) -> list[str]:
    """Returns what generation and update would take if the engine shared its GPUs, or no longer did."""
    if not (config.hardware.num_gpus and config.engine.kind == "vllm"):
        return []
    shared = not config.engine.shared_gpus
    other = config.model_copy(update={"engine": config.engine.model_copy(update={"shared_gpus": shared})})
    memory = memory_of(other, policy, critic, context)
    said = ", ".join(
        f"{phase.name} {phase.device_bytes / GIB:.2f} GiB" + ("" if memory.fits(phase) else " (does not fit)")
        for phase in memory.phases
        if phase.name in ("generation", "actor update")
    )
    return [f"with engine.shared_gpus={str(shared).lower()}: {said}"]
