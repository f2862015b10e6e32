"""What lies in host memory in each phase, and what processes take beside a phase."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipeline.artifacts.checkpoints import PART_BYTES
from pipeline.planner.memory import Phase, Shape, Training, standing_bytes
from pipeline.planner.processes import Processes
from stages.settings import Config

WAITING = "trainer, while the engine works"
LOCKED = "trainer's locked buffers"
"""Into which it has left once: they stay while it is back on its GPUs (`HostBuffers`)."""
ELSEWHERE = ("generation", "reference pass", "hand-off", "value update")
"""Phases in which the trainer has left GPUs that are shared."""


def beside(phase: Phase, others: Mapping[str, int], but: str = "") -> Phase:
    """Returns a phase with what others hold meanwhile, without that of `but`."""
    held = {name: size for name, size in others.items() if size and name != but}
    return replace(phase, device={**phase.device, **held})


def staying(host: Mapping[str, int], name: str) -> dict[str, int]:
    """Returns what of `host_bytes` lies there in a phase."""
    absent = [LOCKED if name in ELSEWHERE else WAITING] if name != "trainer start" else [LOCKED, WAITING]
    return {part: size for part, size in host.items() if part not in absent}


def with_processes(phase: Phase, host: Mapping[str, int], own: Processes, config: Config) -> Phase:
    """Returns a phase with what processes take for themselves, and what lies in host memory all the time."""
    if not config.hardware.num_gpus:
        return beside(phase, {f"processes: {own.number}": own.host_bytes})
    parts = {**host, **phase.host, f"processes: {own.number}": own.host_bytes}
    return replace(beside(phase, {"contexts and NCCL": own.device_bytes}), host=parts)


def host_bytes(config: Config, shape: Shape, how: Training, update: Phase) -> dict[str, int]:
    """Returns what the actor's processes hold in host memory while the engine works, on the whole machine.

    Files of weights, which ranks map, are the system's to drop.
    """
    parts = dict(update.host)
    if config.engine.kind == "vllm":
        parts["engine's copy"] = (2 if config.engine.dtype == "bfloat16" else 4) * shape.parameters
    if config.engine.shared_gpus and config.hardware.num_gpus:
        parts[WAITING] = standing_bytes(update) * how.num_ranks
        kept = ["optimizer", "weights"]
        if how.zero_stage == 3 and not how.forward.lora_rank:  # their memory is DeepSpeed's, made anew
            kept = ["optimizer"]
        parts[LOCKED] = sum(update.device.get(part, 0) for part in kept) * how.num_ranks
    return {part: size for part, size in parts.items() if size}


def checkpoint_bytes(held: Mapping[str, int], policy: Any, how: Training) -> dict[str, int]:
    """Returns what lies in host memory while ranks write a checkpoint; the trainer is on its GPUs."""
    written = 12 * how.trained(policy)
    return staying(held, "checkpoint") | {"parts being written": min(how.num_ranks * PART_BYTES, written)}
