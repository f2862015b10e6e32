"""What each phase of a configuration takes on a GPU and in host memory, and the setting that would fit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.artifacts.checkpoints import PART_BYTES
from pipeline.errors import ConfigError
from pipeline.planner.memory import (
    GIB,
    Generation,
    Phase,
    Shape,
    Training,
    adapter_parameters,
    generation_phase,
    scoring_phase,
    shape_of,
    standing_bytes,
    training_phase,
)
from stages.settings import Config
from stages.settings.engine import shares_gpus
from stages.wiring.build import tiny_shape

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
"""config.json of models to plan with while their weights are not on this machine, by name in lower case."""
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


def model_config(config: Config) -> Any:
    """Returns the transformers configuration of the policy, without weights.

    Raises:
        ConfigError: `sft.base` is not here and `configs/models` does not describe it.
    """
    if config.sft.base is not None:
        return _described(config.sft.base, "sft.base")
    return tiny_shape(config).config(config.sft.model.vocab_size)


def critic_config(config: Config, policy: Any) -> Any:
    """Returns the transformers configuration of the critic's trunk; raises ConfigError as `model_config`."""
    return policy if config.critic.trunk == "policy" else _described(config.critic.trunk, "critic.trunk")


def _described(folder: str, setting: str) -> Any:
    from transformers import AutoConfig

    for path in (Path(folder) / "config.json", MODELS / f"{Path(folder).name.lower()}.json"):
        if path.is_file():
            content = json.loads(path.read_text("utf-8"))
            return AutoConfig.for_model(content.pop("model_type"), **content)
    known = ", ".join(sorted(path.stem for path in MODELS.glob("*.json")))
    raise ConfigError(
        f"{setting} = {folder} has no config.json here, and configs/models describes no model of its name "
        f"(there are: {known}). Next: put its config.json there as {Path(folder).name.lower()}.json"
    )


def training_of(config: Config, model: Any, row_tokens: int) -> Training:
    """Returns how the configuration trains a model, as the planner sees it."""
    from pipeline.training.deepspeed_config import deepspeed_config, is_half

    settings = config.training
    how = Training(
        micro_batch_tokens=settings.micro_batch_tokens,
        row_tokens=min(row_tokens, settings.micro_batch_tokens),
        recompute=settings.recompute,
        half_products=settings.dtype == "bfloat16",
        on_gpu=config.hardware.num_gpus > 0,
    )
    if settings.backend == "torch":
        return replace(how, trained=adapter_parameters(model, rank)) if (rank := settings.lora_rank) else how
    file = deepspeed_config(Path(settings.deepspeed), settings.dtype)
    zero = file["zero_optimization"]
    half = is_half(file)
    return replace(
        how,
        backend="deepspeed",
        zero_stage=int(zero.get("stage", 0)),
        num_ranks=settings.num_ranks,
        half_weights=half,
        half_products=False,  # of half weights they are so anyway
        offload=zero.get("offload_optimizer", {}).get("device", "none") != "none",
        buffer_bytes=_buffered(zero, shape_of(model)) * (2 if half else 4) if settings.num_ranks > 1 else 0,
    )


def _buffered(zero: Mapping[str, Any], shape: Shape) -> int:
    """Returns the numbers in DeepSpeed's buffers: a bucket of gradients, and under ZeRO 3 gathered weights.

    Of these it holds `stage3_max_live_parameters`, and the largest one may come on top.
    """
    bucket = min(int(zero.get("reduce_bucket_size", 500_000_000)), shape.parameters)
    if zero.get("stage") != 3:
        return bucket
    live = int(zero.get("stage3_max_live_parameters", 1_000_000_000))
    return bucket + min(live + shape.vocabulary * shape.width, shape.parameters)


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
