"""Says whether a configuration fits its hardware, and what it would cost at least: `vdapo plan CONFIG`.

Takes no GPU, no memory and no data: the model exists as shapes only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.config import load_config
from pipeline.errors import ConfigError, ExitCode
from pipeline.planner import (
    GIB,
    Generation,
    Phase,
    Shape,
    Training,
    generation_phase,
    largest_fitting,
    shape_of,
    training_phase,
)
from stages.settings import Chain, Config

ACTOR, CRITIC = "actor update", "critic update"
STORED_BYTES = 4.2  # of one token in Parquet: id 0.9, log-probability 3.3


@dataclass(frozen=True, slots=True)
class Work:
    """What one stage does at most.

    Attributes:
        stage: its name.
        rollouts: sampled.
        sampled_tokens: of these, at the longest response.
        trained_tokens: over all its updates.
    """

    stage: str
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0


def model_config(config: Config) -> Any:
    """Returns the transformers configuration of the policy, without weights.

    Raises:
        ConfigError: `sft.base` is not here and `hardware.model` does not describe it.
    """
    from transformers import AutoConfig, Qwen3Config

    base = config.sft.base
    if base is None:
        tiny = config.sft.model
        return Qwen3Config(
            vocab_size=tiny.vocab_size,
            hidden_size=tiny.hidden_size,
            num_hidden_layers=tiny.num_layers,
            num_attention_heads=tiny.num_heads,
            num_key_value_heads=tiny.num_kv_heads,
            head_dim=tiny.head_dim,
            intermediate_size=tiny.intermediate_size,
            max_position_embeddings=tiny.max_position,
            tie_word_embeddings=True,
        )
    for path in (Path(base) / "config.json", Path(config.hardware.model or "")):
        if path.is_file():
            content = json.loads(path.read_text("utf-8"))
            return AutoConfig.for_model(content.pop("model_type"), **content)
    raise ConfigError(
        f"sft.base = {base} has no config.json here, and hardware.model = {config.hardware.model} is no "
        "file. Next: give hardware.model the config.json of that model"
    )


def training_of(config: Config, row_tokens: int) -> Training:
    """Returns how the configuration trains, as the planner sees it."""
    from stages.backends import read_deepspeed_config

    settings = config.training
    how = Training(
        micro_batch_tokens=settings.micro_batch_tokens,
        row_tokens=min(row_tokens, settings.micro_batch_tokens),
        piece_tokens=settings.piece_tokens,
        recompute=settings.recompute,
        half_products=settings.dtype == "bfloat16",
    )
    if settings.backend == "torch":
        return how
    file = read_deepspeed_config(Path(settings.deepspeed))
    zero = file.get("zero_optimization", {})
    half = bool(file.get("bf16", {}).get("enabled"))
    return replace(
        how,
        backend="deepspeed",
        zero_stage=int(zero.get("stage", 0)),
        num_ranks=settings.num_ranks,
        half_weights=half,
        half_products=how.half_products and not half,
        offload=zero.get("offload_optimizer", {}).get("device", "none") != "none",
    )


def rollouts_of_chain(chain: Chain, num_tasks: int) -> int:
    """Returns the rollouts of one group per task, at most."""
    free = round(chain.feedback_free_share * num_tasks)
    return free * chain.feedback_free_draws + (num_tasks - free) * chain.num_attempts * chain.draws


def work_of(config: Config) -> list[Work]:
    """Returns what each stage samples and trains at most."""
    from env.catalog import ENVIRONMENTS

    turns = ENVIRONMENTS[config.tasks.environment].max_turns
    rollouts = rollouts_of_chain(config.rollouts.chain, config.rollouts.num_tasks or config.tasks.num_train)
    response = config.rollouts.sampling.max_response_tokens
    states = config.labels.max_states or rollouts * (len(config.labels.anchors) + 2)
    labels = states * config.labels.num_continuations
    report = config.critic_report
    audited = len(report.splits) * report.tasks_per_split * report.draws
    actor = config.actor
    tasks = actor.tasks_per_update * actor.updates_per_iteration
    trained = actor.num_iterations * rollouts_of_chain(actor.chain, tasks)
    refills = 1 + actor.max_refills
    evaluation = config.evaluation
    per_task = 2 * (evaluation.draws + 1 + evaluation.num_attempts)
    sft_rows = config.sft.num_updates * config.sft.batch_rows
    return [
        Work("sft", trained_tokens=sft_rows * response),
        Work("rollouts", rollouts, rollouts * response),
        Work("labels", labels, labels * response),
        Work("critic", trained_tokens=int(rollouts * response * config.critic.max_epochs)),
        Work(
            "critic_report",
            audited * (1 + turns * report.num_continuations),
            audited * (1 + turns * report.num_continuations) * response,
        ),
        Work(
            "actor",
            trained * refills,
            trained * refills * actor.sampling.max_response_tokens,
            trained * actor.sampling.max_response_tokens,
        ),
        Work(
            "evaluation",
            len(evaluation.splits) * config.tasks.num_test * per_task,
            len(evaluation.splits)
            * config.tasks.num_test
            * per_task
            * evaluation.sampling.max_response_tokens,
        ),
    ]


def least_hours(work: Work, config: Config, shape: Shape, live: int, context: int) -> float | None:
    """Returns a lower bound: arithmetic at the data sheet's speed, decoding at its memory bandwidth."""
    hardware = config.hardware
    if not (hardware.num_gpus and hardware.gpu_tflops and hardware.gpu_bandwidth_gbs):
        return None
    flops = hardware.num_gpus * hardware.gpu_tflops * 1e12
    train = work.trained_tokens * shape.training_flops(context, recompute=config.training.recompute) / flops
    element = 2 if config.engine.dtype == "bfloat16" else 4
    steps = work.sampled_tokens / max(1, live * config.engine.replicas)
    read = shape.parameters * element + live * context / 2 * shape.cache_bytes(element)
    decode = steps * read / (hardware.gpu_bandwidth_gbs * 1e9 * config.engine.tensor_parallel)
    return (train + max(decode, work.sampled_tokens * 2 * shape.matmul_parameters / flops)) / 3600


def phases_of(config: Config, model: Any, shape: Shape, context: int) -> tuple[list[Phase], int]:
    """Returns what every phase takes, and how many rollouts a replica keeps alive.

    The actor's trainer and its engine live side by side, so an update needs room for both.
    """
    how = training_of(config, context)
    engine = config.engine
    element = 2 if engine.kind == "vllm" and engine.dtype == "bfloat16" else 4
    if config.hardware.num_gpus:
        share = int(engine.memory_share * config.hardware.gpu_memory_gib * GIB)
        cache = max(0, share - shape.parameters * element // engine.tensor_parallel)
    elif engine.kind == "vllm":
        cache = int(engine.kv_cache_gib * GIB)
    else:
        cache = engine.max_live * context * shape.cache_bytes(element)
    generation, live = generation_phase(
        "generation", shape, Generation(engine.tensor_parallel, element, cache, context)
    )
    update = training_phase(ACTOR, model, how)
    beside = replace(update, device={**update.device, "engine": generation.device_bytes})
    phases = [beside, training_phase(CRITIC, model, how, head="critic"), generation]
    return phases, min(live, math.ceil(engine.max_live / engine.replicas))


def advice(config: Config, model: Any, phase: Phase, context: int, limit: int) -> str:
    """Returns the nearest setting that fits."""
    if phase.name == "generation":
        return "raise engine.memory_share or engine.tensor_parallel"
    head: Literal["policy", "critic"] = "critic" if phase.name == CRITIC else "policy"
    left = limit - phase.device.get("engine", 0)
    fitting = largest_fitting(training_of(config, context), model, left, head)
    if fitting is not None:
        return (
            f"training.micro_batch_tokens={fitting.micro_batch_tokens} "
            f"training.recompute={str(fitting.recompute).lower()}"
        )
    lower = "a lower engine.memory_share, " if "engine" in phase.device else ""
    return f"no micro-batch does: {lower}more ranks, or a configuration of DeepSpeed that offloads"


def main(argv: Sequence[str]) -> int:
    """Prints the plan of `CONFIG [section.key=value ...]`; returns 0 if it fits, else 2."""
    from rich.console import Console
    from rich.table import Table

    if not argv:
        raise ConfigError("vdapo plan needs a configuration: vdapo plan configs/demo.yaml")
    config = load_config(Config, Path(argv[0]), argv[1:])
    model = model_config(config)
    shape = shape_of(model)
    context = min(
        config.actor.sampling.max_response_tokens + config.actor.chain.max_feedback_tokens,
        int(model.max_position_embeddings),
    )
    console = Console()
    console.print(
        f"{shape.parameters:,} parameters, {shape.layers} layers of width {shape.width}; keys and values of "
        f"a token {shape.cache_bytes(2):,} bytes in bf16; rows of {context:,} tokens at most"
    )
    phases, live = phases_of(config, model, shape, context)
    hardware = config.hardware
    limit = int((hardware.gpu_memory_gib if hardware.num_gpus else hardware.host_memory_gib) * GIB)
    table = Table("phase", "GiB", f"of {limit / GIB:.0f}", "parts", title="memory of each GPU or process")
    misfits = []
    for phase in phases:
        fits = phase.device_bytes <= limit
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in phase.device.items())
        parts += "".join(f"; in host memory: {name} {size / GIB:.0f}" for name, size in phase.host.items())
        table.add_row(
            phase.name, f"{phase.device_bytes / GIB:.2f}", "fits" if fits else "DOES NOT FIT", parts
        )
        if not fits:
            misfits.append(f"{phase.name}: {advice(config, model, phase, context, limit)}")
        if sum(phase.host.values()) > hardware.host_memory_gib * GIB:
            misfits.append(
                f"{phase.name}: hardware.host_memory_gib of {hardware.host_memory_gib} does not do"
            )
    console.print(table)
    costs = Table(
        "stage",
        "rollouts",
        "sampled tokens",
        "trained tokens",
        "GB on disk",
        "hours",
        title="at most; hours: at least",
    )
    for work in work_of(config):
        hours = least_hours(work, config, shape, live, context)
        costs.add_row(
            work.stage,
            f"{work.rollouts:,}",
            f"{work.sampled_tokens:,}",
            f"{work.trained_tokens:,}",
            f"{work.sampled_tokens * STORED_BYTES / 1e9:.2f}",
            "-" if hours is None else f"{hours:.2f}",
        )
    console.print(costs)
    console.print(
        f"a checkpoint {12 * shape.parameters / 1e9:.2f} GB, an exported model "
        f"{4 * shape.parameters / 1e9:.2f} GB; {live} rollouts alive in a replica"
    )
    for line in misfits:
        console.print(f"does not fit: {line}", style="bold")
    return ExitCode.CONFIG if misfits else ExitCode.COMPLETE
