"""What to change where a configuration does not fit its hardware."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from pipeline.planner.memory import GIB, Shape
from stages.settings import Config
from stages.wiring.plan_memory import Memory


def unused_gpus(config: Config) -> list[str]:
    """Returns what would compute on the CPU of a machine with GPUs."""
    if not config.hardware.num_gpus:
        return []
    said = []
    if config.training.backend == "torch" and config.hardware.num_gpus > 1:
        said.append("training.backend = torch trains on one GPU; training.backend=deepspeed uses all")
    if config.engine.kind == "transformers":
        said.append("engine.kind = transformers samples on the CPU; engine.kind=vllm uses the GPUs")
    return said


def no_room_for_a_row(config: Config, memory: Memory, shape: Shape, positions: int) -> list[str]:
    """Returns what to say if vLLM would not start: its cache must hold one row of the engine's length."""
    if config.engine.kind != "vllm":
        return []
    element = 2 if config.engine.dtype == "bfloat16" else 4
    per_token = shape.cache_bytes(element) / config.engine.tensor_parallel
    room = int(memory.phases["generation"].device["key-value cache"] // per_token)
    wanted = min(config.row_tokens, positions)
    if wanted <= room:
        return []
    more = "raise engine.memory_share, or " if config.hardware.num_gpus else ""
    return [
        f"generation: the cache holds {room:,} tokens, one row may take {wanted:,}; {more}lower "
        "sampling.max_response_tokens or prompt.max_feedback_tokens"
    ]


def advice(config: Config, memory_of: Callable[[Config], Memory], context: int, name: str) -> str:
    """Returns the settings nearest to the given ones under which phase `name` fits."""
    for changes in _nearby(config, context):
        if memory_of(changed(config, changes)).fits(name):
            return " ".join(f"{key}={json.dumps(value)}" for key, value in changes.items())
    if name == "generation":
        if config.engine.kind == "vllm":
            return "raise engine.memory_share or engine.tensor_parallel"
        return "lower engine.replicas or engine.max_live"
    phase = memory_of(config).phases[name]
    if phase.host_bytes > config.hardware.host_memory_gib * GIB:
        return f"needs hardware.host_memory_gib of {math.ceil(phase.host_bytes / GIB)}"
    lower = "a lower engine.memory_share, " if "engine" in phase.device else ""
    return f"no micro-batch does: {lower}more ranks, or a configuration of DeepSpeed that offloads"


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Returns the settings with other values of `section.key`."""
    for name, value in changes.items():
        section, _, key = name.partition(".")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={key: value})})
    return config


def can_share(config: Config) -> bool:
    """Returns whether engine and trainer could take turns on the same GPUs."""
    return config.hardware.num_gpus > 0 and config.engine.kind == "vllm"


def _nearby(config: Config, context: int) -> Iterator[dict[str, Any]]:
    """Yields changes of settings: smaller micro-batches, then with recompute, then with taking turns."""
    training = config.training
    sizes = [training.micro_batch_tokens]
    while sizes[-1] // 2 >= context:
        sizes.append(sizes[-1] // 2)
    shares = (False, True) if can_share(config) and not config.engine.shared_gpus else (False,)
    for share, recompute, size in product(shares, (False, True)[: 2 - training.recompute], sizes):
        changes: dict[str, Any] = {"engine.shared_gpus": True} if share else {}
        if size < training.micro_batch_tokens:
            changes["training.micro_batch_tokens"] = size
        if recompute:
            changes["training.recompute"] = True
        yield changes
