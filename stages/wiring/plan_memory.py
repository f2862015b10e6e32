"""What each phase of a configuration takes on a GPU and in host memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.engines.vllm_options import VllmOptions
from pipeline.planner.activations import Forward
from pipeline.planner.memory import (
    GIB,
    Phase,
    Shape,
    reference_phase,
    scoring_phase,
    shape_of,
    standing_bytes,
    start_phase,
    step_phase,
    training_phase,
)
from stages.settings import Config
from stages.settings.engine import Vllm
from stages.wiring.hands import num_players
from stages.wiring.plan_host import beside, checkpoint_bytes, host_bytes, staying, with_processes
from stages.wiring.plan_models import training_of
from stages.wiring.plan_processes import actor_processes, critic_processes

CRITIC = "critic (first GPU)"
ENGINE_WORK_BYTES = GIB  # start value: of vLLM's passes, in its share beside weights, cache and graphs
ENGINE_ASLEEP_BYTES = GIB  # start value: what vLLM keeps of a GPU while it sleeps, beside context and NCCL
GRAPH_BYTES = (
    GIB  # start value: of vLLM's CUDA graphs, which its share includes, and which stay while it sleeps
)


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
    how, needs_reference = training_of(config, policy, context), _needs_reference(config)
    generation, live = _generation(config, shape, context)
    update, reference = training_phase(policy, how), reference_phase(policy, how)
    shared = config.engine.shared_gpus and hardware.num_gpus > 0
    left = {  # on the GPU, of each while the others work
        "engine": _asleep_bytes(config) if shared else generation.device_bytes,
        "trainer": 0 if shared else standing_bytes(update),
        "reference": 0 if shared or not needs_reference else reference.device["weights"],
    }
    phases = {"generation": beside(generation, left, but="engine")}
    if how.backend == "deepspeed":
        phases["trainer start"] = beside(start_phase(policy, how), left, but="trainer")
    phases["actor update"] = beside(update, left, but="trainer")
    if how.backend == "deepspeed" and not how.offload:
        phases["optimizer's step"] = beside(step_phase(update, how.forward.on_gpu), left, but="trainer")
    if needs_reference:
        phases["reference pass"] = beside(reference, left, but="reference")
    host = host_bytes(config, shape, how, update)
    awake = left | {"trainer": standing_bytes(update)}
    if config.engine.kind == "vllm" or how.backend == "deepspeed":
        handed = {"weights handed over, fp32": 4 * shape.parameters} if how.backend == "deepspeed" else {}
        phases["hand-off"] = beside(Phase({}, staying(host, "hand-off") | handed), awake)
    if how.backend == "deepspeed":
        phases["checkpoint"] = beside(Phase({}, checkpoint_bytes(host, policy, how)), awake)
    if config.actor.credit.mode == "actor_critic":
        head = training_phase(policy, how, "critic")
        phases["value update"] = beside(head, left)
        kept = {} if shared else {"value head": standing_bytes(head)}
        host |= {"value head": standing_bytes(head) * how.num_ranks} if shared else {}
        phases |= {name: beside(phase, kept) for name, phase in phases.items() if name != "value update"}
    if config.actor.needs_critic:  # its critic scores in fp32, and it stays
        frozen = scoring_phase(
            critic, Forward(how.forward.tokens, how.forward.row_tokens, on_gpu=how.forward.on_gpu)
        )
        critic_bytes = {"generation": frozen.device_bytes}  # scores while the engine is awake
        phases = {
            name: beside(phase, {CRITIC: critic_bytes.get(name, frozen.device["weights"])})
            for name, phase in phases.items()
        }
    own = actor_processes(config, needs_reference)
    phases = {name: with_processes(phase, staying(host, name), own, config) for name, phase in phases.items()}
    fit = training_phase(critic, training_of(config, critic, context), "critic")
    phases["critic update"] = with_processes(fit, {}, critic_processes(config), config)
    limit = hardware.gpu_memory_gib if hardware.num_gpus else hardware.host_memory_gib
    return Memory(phases, live, int(limit * GIB), int(hardware.host_memory_gib * GIB))


def _needs_reference(config: Config) -> bool:
    """Returns whether there is a second model: without their adapters, weights are the reference's."""
    return config.actor.credit.kl > 0 and not config.training.lora_rank


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
        parts["at work"] = ENGINE_WORK_BYTES + (0 if engine.eager else GRAPH_BYTES)
        parts["key-value cache"] = cache = max(0, share - sum(parts.values()))
    else:
        parts["key-value cache"] = cache = int(VllmOptions().kv_cache_gib * GIB)
        if element == 2:  # of a pass; CUDA's product of halves yields fp32 by itself (vLLM's LogitsProcessor)
            parts["output layer in fp32"] = 4 * shape.vocabulary * shape.width
    live = int(cache // (element * shape.cache_entries / split * context))
    return Phase(parts), min(live, math.ceil(engine.max_live / engine.replicas))


def _asleep_bytes(config: Config) -> int:
    """Returns what an engine keeps of each GPU while it sleeps, beside context and NCCL."""
    return ENGINE_ASLEEP_BYTES + (0 if config.engine.kind == "vllm" and config.engine.eager else GRAPH_BYTES)
