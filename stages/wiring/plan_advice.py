"""What to change where a configuration does not fit its hardware."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pipeline.planner.memory import GIB
from stages.settings import Config
from stages.wiring.plan_memory import memory_of


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


def advice(config: Config, policy: Any, critic: Any, context: int, name: str) -> str:
    """Returns the setting nearest to the given ones under which phase `name` fits."""
    for trial, said in _trials(config, context):
        memory = memory_of(trial, policy, critic, context)
        [phase] = [phase for phase in memory.phases if phase.name == name]
        if memory.fits(phase):
            return said
    if name == "generation":
        return "raise engine.memory_share or engine.tensor_parallel"
    [phase] = [p for p in memory_of(config, policy, critic, context).phases if p.name == name]
    if sum(phase.host.values()) > config.hardware.host_memory_gib * GIB:
        return f"needs hardware.host_memory_gib of {math.ceil(sum(phase.host.values()) / GIB)}"
    lower = "a lower engine.memory_share, " if "engine" in phase.device else ""
    return f"no micro-batch does: {lower}more ranks, or a configuration of DeepSpeed that offloads"


def _trials(config: Config, context: int) -> Iterator[tuple[Config, str]]:
    """Yields nearby configurations and what they change: smaller batches, recompute, taking turns."""
    can_share = config.hardware.num_gpus and config.engine.kind == "vllm" and not config.engine.shared_gpus
    for shared in (False, True) if can_share else (False,):
        for recompute in (False, True) if not config.training.recompute else (False,):
            tokens = config.training.micro_batch_tokens
            while tokens >= min(context, config.training.micro_batch_tokens):
                training = {"micro_batch_tokens": tokens, **({"recompute": True} if recompute else {})}
                engine = {"shared_gpus": True} if shared else {}
                changed = ["engine.shared_gpus=true"] * shared
                changed += [f"training.micro_batch_tokens={tokens}"] * (
                    tokens < config.training.micro_batch_tokens
                )
                changed += ["training.recompute=true"] * recompute
                trial = config.model_copy(
                    update={
                        "training": config.training.model_copy(update=training),
                        "engine": config.engine.model_copy(update=engine),
                    }
                )
                yield trial, " ".join(changed)
                tokens //= 2
