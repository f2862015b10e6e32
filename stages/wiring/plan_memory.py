"""What each phase of a configuration takes on a GPU and in host memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.artifacts.checkpoints import PART_BYTES
from pipeline.engines.vllm_options import VllmOptions
from pipeline.planner.memory import (
    GIB,
    Phase,
    Shape,
    Training,
    scoring_phase,
    shape_of,
    standing_bytes,
    training_phase,
)
from stages.settings import Config
from stages.settings.engine import Vllm
from stages.wiring.hands import num_players
from stages.wiring.plan_models import training_of

WAITING = "trainer, while the engine works"
ENGINE_WORK_BYTES = GIB  # start value: of vLLM's passes, in its share beside weights and cache
ENGINE_ASLEEP_BYTES = GIB  # start value: what vLLM keeps of a GPU while it sleeps


@dataclass(frozen=True, slots=True)
class Memory:
    """What a configuration takes, and the bytes that there are."""

    phases: Mapping[str, Phase]  # by name, in the order of a run
    live: int  # rollouts that a replica keeps alive; 0 if not one fits
    limit: int  # of a GPU, without GPUs of the machine
    host_limit: int

    def fits(self, name: str) -> bool:
        """Returns whether a phase finds room."""
        if name == "generation" and self.live < 1:
            return False
        phase = self.phases[name]
        return phase.device_bytes <= self.limit and phase.host_bytes <= self.host_limit


def memory_of(policy: Any, critic: Any, context: int, config: Config) -> Memory:
    """Returns what every phase takes, of transformers configurations and rows of `context` tokens."""
    hardware, shape = config.hardware, shape_of(policy)
    how, needs_reference = training_of(config, policy, context), config.actor.credit.kl > 0
    generation, live = _generation(config, shape, context)
    update, reference = training_phase(policy, how), scoring_phase(policy, how.forward)
    shared = config.engine.shared_gpus and hardware.num_gpus > 0
    left = {  # on the GPU, of each while the others work
        "engine": ENGINE_ASLEEP_BYTES if shared else generation.device_bytes,
        "trainer": 0 if shared else standing_bytes(update),
        "reference": 0 if shared or not needs_reference else reference.device["weights"],
    }
    phases = {
        "generation": _beside(generation, left, but="engine"),
        "actor update": _beside(update, left, but="trainer"),
    }
    if needs_reference:
        phases["reference pass"] = _beside(reference, left, but="reference")
    if config.engine.kind == "vllm" or how.backend == "deepspeed":
        host = _host_bytes(config, shape, how, update)
        gathered = 4 * shape.vocabulary * shape.width if how.num_ranks > 1 else 0
        awake = left | {"trainer": standing_bytes(update), "a gathered weight": gathered}
        phases["hand-off"] = _beside(Phase({}, host), awake)
        if how.backend == "deepspeed":
            phases["checkpoint"] = _beside(Phase({}, _checkpoint_bytes(host, shape, how)), awake)
    if config.actor.credit.mode == "actor_critic":
        head = training_phase(policy, how, "critic")
        phases["value update"] = _beside(head, left)
        kept = {} if shared else {"value head": standing_bytes(head)}
        phases |= {name: _beside(phase, kept) for name, phase in phases.items() if name != "value update"}
    if config.actor.credit.needs_critic:  # its critic scores in fp32, and it stays
        frozen = scoring_phase(critic, replace(how.forward, half_weights=False, half_products=False))
        kept = {"critic (first GPU)": frozen.device_bytes}
        phases = {name: _beside(phase, kept) for name, phase in phases.items()}
    phases["critic update"] = training_phase(critic, training_of(config, critic, context), "critic")
    limit = hardware.gpu_memory_gib if hardware.num_gpus else hardware.host_memory_gib
    return Memory(phases, live, int(limit * GIB), int(hardware.host_memory_gib * GIB))


def _beside(phase: Phase, others: Mapping[str, int], but: str = "") -> Phase:
    """Returns a phase with what others hold meanwhile, without that of `but`."""
    held = {name: size for name, size in others.items() if size and name != but}
    return replace(phase, device={**phase.device, **held})


def _generation(config: Config, shape: Shape, context: int) -> tuple[Phase, int]:
    """Returns what the engines take while they sample, and how many rollouts each keeps alive."""
    engine = config.engine
    if not isinstance(engine, Vllm):  # on the CPU, where all players share the machine
        players, weights = num_players(engine), 4 * shape.parameters
        cache = players * engine.max_live * context * 4 * shape.cache_entries
        parts = {"weights": players * weights, "key-value cache": cache}
        if players > 1:
            parts["weights that players read"] = weights
        return Phase(parts), engine.max_live
    element, split = 2 if engine.dtype == "bfloat16" else 4, engine.tensor_parallel
    parts = {"weights": shape.parameters * element // split}
    if config.hardware.num_gpus:
        share = int(engine.memory_share * config.hardware.gpu_memory_gib * GIB)
        cache = max(0, share - parts["weights"] - ENGINE_WORK_BYTES)
        parts |= {"key-value cache": cache, "at work": ENGINE_WORK_BYTES}
    else:
        parts["key-value cache"] = cache = int(VllmOptions().kv_cache_gib * GIB)
    live = int(cache // (element * shape.cache_entries / split * context))
    return Phase(parts), min(live, math.ceil(engine.max_live / engine.replicas))


def _host_bytes(config: Config, shape: Shape, how: Training, update: Phase) -> dict[str, int]:
    """Returns what the actor's processes hold in host memory at once, on the whole machine."""
    parts = dict(update.host)
    if how.backend == "deepspeed":
        parts["gathered weights, fp32"] = 4 * shape.parameters
        if config.actor.credit.kl > 0:
            parts["reference policy"] = (2 if how.forward.half_weights else 4) * shape.parameters
    if config.engine.kind == "vllm":
        parts["engine's copy"] = (2 if config.engine.dtype == "bfloat16" else 4) * shape.parameters
    if config.engine.shared_gpus and config.hardware.num_gpus:
        parts[WAITING] = standing_bytes(update) * how.num_ranks
    return parts


def _checkpoint_bytes(handoff: Mapping[str, int], shape: Shape, how: Training) -> dict[str, int]:
    """Returns what lies in host memory while ranks write a checkpoint; the trainer is on its GPUs."""
    held = {name: size for name, size in handoff.items() if name != WAITING}
    part = max(PART_BYTES, 4 * shape.vocabulary * shape.width)  # the largest tensor is a part of its own
    return {**held, "parts being written": min(how.num_ranks * part, 12 * shape.parameters)}
