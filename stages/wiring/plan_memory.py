"""What each phase of a configuration takes on a GPU and in host memory, and the setting that would fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.artifacts.checkpoints import PART_BYTES
from pipeline.planner.memory import (
    GIB,
    Generation,
    Phase,
    Shape,
    Training,
    generation_phase,
    scoring_phase,
    shape_of,
    standing_bytes,
    training_phase,
)
from stages.settings import Config
from stages.settings.engine import shares_gpus
from stages.wiring.plan_models import training_of

WAITING = "trainer, while the engine works"
ENGINE_WORK_BYTES = GIB  # start value: of vLLM's passes, in its share beside weights and cache
ENGINE_ASLEEP_BYTES = GIB  # start value: what vLLM keeps of a GPU while it sleeps


@dataclass(frozen=True, slots=True)
class Memory:
    """What a configuration takes.

    Attributes:
        phases: in the order of a run.
        live: rollouts that a replica keeps alive; 0 if not one fits.
        limit: bytes of a GPU, without GPUs of the machine.
        host_limit: bytes of the machine.
    """

    phases: tuple[Phase, ...]
    live: int
    limit: int
    host_limit: int

    def fits(self, phase: Phase) -> bool:
        """Returns whether a phase finds room."""
        if phase.name == "generation" and self.live < 1:
            return False
        return phase.device_bytes <= self.limit and sum(phase.host.values()) <= self.host_limit


def memory_of(config: Config, policy: Any, critic: Any, context: int) -> Memory:
    """Returns what every phase takes.

    Args:
        config: all settings.
        policy: its transformers configuration.
        critic: the shape of its trunk.
        context: tokens of the longest row.
    """
    engine, hardware = config.engine, config.hardware
    shape = shape_of(policy)
    how = training_of(config, policy, context)
    kl = config.actor.credit.kl > 0
    update = training_phase("actor update", policy, how)
    reference = scoring_phase("reference pass", policy, how) if kl else None
    generation, live = _generation(config, shape, context)
    shared = shares_gpus(engine) and hardware.num_gpus > 0
    # What each leaves on the GPU while others work.
    asleep = ENGINE_ASLEEP_BYTES if shared else generation.device_bytes
    parked = 0 if shared else standing_bytes(update)
    aside = 0 if shared or reference is None else reference.device["weights"]
    values = 0
    if config.actor.credit.mode == "v_dapo":  # in fp32, and it stays
        frozen = replace(how, half_weights=False, half_products=False)
        values = scoring_phase("", critic, frozen).device_bytes
    gathered = {"a gathered weight": 4 * shape.vocabulary * shape.width} if how.num_ranks > 1 else {}
    phases = [
        _beside(generation, {"trainer": parked, "reference": aside}),
        _beside(update, {"engine": asleep, "reference": aside}),
    ]
    if reference is not None:
        phases.append(_beside(reference, {"engine": asleep, "trainer": parked}))
    if engine.kind == "vllm" or how.backend == "deepspeed":
        trainer = {"trainer": standing_bytes(update), **gathered}
        host = _host_bytes(config, shape, how, update, reference=kl)
        beside = {**trainer, "engine": asleep, "reference": aside}
        phases.append(_beside(Phase("hand-off", {}, host), beside))
        if how.backend == "deepspeed":
            phases.append(_beside(Phase("checkpoint", {}, _checkpoint_bytes(host, shape, how)), beside))
    phases = [_beside(phase, {"critic (first GPU)": values}) for phase in phases]
    phases.append(
        training_phase("critic update", critic, training_of(config, critic, context), head="critic")
    )
    limit = hardware.gpu_memory_gib if hardware.num_gpus else hardware.host_memory_gib
    return Memory(tuple(phases), live, int(limit * GIB), int(hardware.host_memory_gib * GIB))


def _generation(config: Config, shape: Shape, context: int) -> tuple[Phase, int]:
    engine, memory = config.engine, config.hardware.gpu_memory_gib
    if engine.kind != "vllm":
        size = engine.max_live * context * shape.cache_bytes(4)
        phase, live = generation_phase("generation", shape, Generation(1, 4, size, context))
        return phase, min(live, engine.max_live)
    element = 2 if engine.dtype == "bfloat16" else 4
    work, cache = {}, int(engine.kv_cache_gib * GIB)
    if config.hardware.num_gpus:
        work = {"at work": ENGINE_WORK_BYTES}
        weights = shape.parameters * element // engine.tensor_parallel
        cache = max(0, int(engine.memory_share * memory * GIB) - weights - ENGINE_WORK_BYTES)
    how = Generation(engine.tensor_parallel, element, cache, context)
    phase, live = generation_phase("generation", shape, how)
    return _beside(phase, work), min(live, math.ceil(engine.max_live / engine.replicas))


def _host_bytes(
    config: Config, shape: Shape, how: Training, update: Phase, *, reference: bool
) -> dict[str, int]:
    """Returns what the actor's processes hold in host memory at once, on the whole machine."""
    parts = dict(update.host)
    if how.backend == "deepspeed":
        parts["gathered weights, fp32"] = 4 * shape.parameters
        if reference:
            parts["reference policy"] = (2 if how.half_weights else 4) * shape.parameters
    if config.engine.kind == "vllm":
        parts["engine's copy"] = (2 if config.engine.dtype == "bfloat16" else 4) * shape.parameters
    if shares_gpus(config.engine) and config.hardware.num_gpus:
        parts[WAITING] = standing_bytes(update) * how.num_ranks
    return parts


def _checkpoint_bytes(handoff: Mapping[str, int], shape: Shape, how: Training) -> dict[str, int]:
    """Returns what lies in host memory while ranks write a checkpoint; the trainer is on its GPUs."""
    held = {name: size for name, size in handoff.items() if name != WAITING}
    part = max(PART_BYTES, 4 * shape.vocabulary * shape.width)  # the largest tensor is a part of its own
    return {**held, "parts being written": min(how.num_ranks * part, 12 * shape.parameters)}


def _beside(phase: Phase, others: Mapping[str, int]) -> Phase:
    """Returns a phase with what others hold meanwhile."""
    return replace(phase, device={**phase.device, **{name: size for name, size in others.items() if size}})
