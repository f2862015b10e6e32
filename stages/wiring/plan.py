"""`vdapo plan CONFIG`: whether a configuration fits its hardware, and what it samples, trains and stores.

Takes no GPU, no memory and no data: the model exists as shapes only.
"""

import argparse
import math
from pathlib import Path

from rich.console import Console

from pipeline.config import load_config
from pipeline.errors import ExitCode
from pipeline.planner.memory import GIB, shape_of
from stages.settings import Config
from stages.wiring.hands import num_players
from stages.wiring.plan_comparison import work_of_comparison
from stages.wiring.plan_critic import critic_words
from stages.wiring.plan_feedback import texts_of
from stages.wiring.plan_memory import Memory, memory_of
from stages.wiring.plan_models import critic_config, model_config
from stages.wiring.plan_tables import guess_of, memory_table, work_rows, work_table
from stages.wiring.plan_work import work_of
from stages.wiring.preflight import MIN_ADAPTER_RATE, slow_adapters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("config", type=Path, help="a YAML, such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")


def run(options: argparse.Namespace) -> int:
    """Prints the plan of a configuration; returns 0 if it fits, else 2."""
    config = load_config(Config, options.config, options.overrides)
    policy = model_config(config)
    critic, positions = critic_config(config, policy), int(policy.max_position_embeddings)
    context = min(config.sampling.max_response_tokens + config.prompt.max_feedback_tokens, positions)
    shapes = {"policy": shape_of(policy), "critic": shape_of(critic)}
    memory = memory_of(policy, critic, context, config)
    console = Console()
    for name, shape in shapes.items():
        console.print(
            f"{name}: {shape.parameters:,} parameters, {shape.layers} layers of width {shape.width}; keys "
            f"and values of a token {2 * shape.cache_entries:,} bytes in bf16"
        )
    console.print(
        f"rows of {context:,} tokens at most, besides a task's own prompt; {memory.live} of them alive in a "
        f"replica; processes that play: {num_players(config.engine)}"
    )
    console.print(memory_table(memory))
    for line in [*_idle_gpus(config), *filter(None, [slow_adapters(config)])]:
        console.print(line, style="bold")
    work = work_of(config, *_parameters(config))
    console.print(work_table(work_rows(config, work)))
    more = max(stage.passing_bytes for stage in work) / 1e9
    console.print(
        f"while a stage trains, its checkpoints take up to {more:,.2f} GB of disk more; they go when it is "
        "complete"
    )
    if config.rollouts.solutions is not None:
        console.print("not above: what training on recorded rollouts takes, whose file is not read")
    if config.feedback.kind != "rules":
        console.print(
            f"texts of feedback by a model, at most: {texts_of(config):,}; their tokens are not above"
        )
    if config.actor.needs_critic:
        console.print(critic_words(config, work))
    if arms := config.comparison.arms:
        title = f"comparison of {len(arms)} arms with {len(config.comparison.seeds)} seeds each, at most"
        console.print(work_table(work_of_comparison(config, _parameters), title + guess_of(config)))
    row = min(config.row_tokens, positions)
    misfits = _unused_gpus(config) + _no_room_for_a_row(config, memory, row, shapes["policy"].cache_entries)
    misfits += [_misfit(config, memory, name) for name in memory.phases if not memory.fits(name)]
    for line in misfits:
        console.print(f"does not fit: {line}", style="bold")
    return ExitCode.CONFIG if misfits else ExitCode.COMPLETE


def _parameters(config: Config) -> tuple[int, int]:
    """Returns the parameters of policy and critic."""
    policy = model_config(config)
    return shape_of(policy).parameters, shape_of(critic_config(config, policy)).parameters


def _idle_gpus(config: Config) -> list[str]:
    """Returns whose settings leave GPUs without work."""
    there = config.hardware.num_gpus
    return [
        f"idle: {there - number} of {there} GPUs, as {name} = {number}"
        for name, number in config.gpus_wanted(engine=True, training=True).items()
        if number < there
    ]


def _unused_gpus(config: Config) -> list[str]:
    """Returns what would compute on the CPU of a machine with GPUs."""
    said = []
    if config.training.backend == "torch" and config.hardware.num_gpus > 1:
        said.append("training.backend = torch trains on one GPU; training.backend=deepspeed uses all")
    if config.engine.kind == "transformers" and config.hardware.num_gpus:
        said.append("engine.kind = transformers samples on the CPU; engine.kind=vllm uses the GPUs")
    return said


def _no_room_for_a_row(config: Config, memory: Memory, row_tokens: int, cache_entries: int) -> list[str]:
    """Returns what to say if vLLM would not start: its cache must hold one row of the engine's length."""
    if config.engine.kind != "vllm":
        return []
    element = 2 if config.engine.dtype == "bfloat16" else 4
    per_token = element * cache_entries / config.engine.tensor_parallel
    room = int(memory.phases["generation"].device["key-value cache"] // per_token)
    if row_tokens <= room:
        return []
    more = "raise engine.memory_share, or " if config.hardware.num_gpus else ""
    return [
        f"generation: the cache holds {room:,} tokens, one row may take {row_tokens:,}; {more}lower "
        "sampling.max_response_tokens or prompt.max_feedback_tokens"
    ]


def _misfit(config: Config, memory: Memory, name: str) -> str:
    """Returns by how much a phase does not fit, and the settings that lower what it takes."""
    phase = memory.phases[name]
    has_other_way = config.sft.base is not None and not config.training.lora_rank and name != "critic update"
    rate = f"actor.learning_rate={MIN_ADAPTER_RATE:g} or more"
    adapters = f", or training.lora_rank=16 with {rate}" if has_other_way else ""
    if phase.host_bytes > memory.host_limit:
        return f"{name}: needs hardware.host_memory_gib of {math.ceil(phase.host_bytes / GIB)}{adapters}"
    if memory.live < 1 and name == "generation":
        return f"{name}: the cache holds no rollout; raise engine.memory_share or engine.tensor_parallel"
    lower: list[str] = []
    if "activations" in phase.device:
        is_one_row = config.row_tokens >= config.training.micro_batch_tokens
        longest = "sampling.max_response_tokens or prompt.max_feedback_tokens"
        lower.append(f"lower {longest if is_one_row else 'training.micro_batch_tokens'}")
        if not config.training.recompute:
            lower.append("set training.recompute=true")
    if "optimizer" in phase.device:
        lower.append("take more ranks or a training.deepspeed that offloads")
    if config.engine.kind != "vllm":
        lower.append("lower engine.replicas or engine.max_live")
    elif name != "critic update":  # there is no engine beside it
        turns = config.engine.shared_gpus or not config.hardware.num_gpus
        lower.append("lower engine.memory_share" + ("" if turns else " or set engine.shared_gpus=true"))
    over = (phase.device_bytes - memory.limit) / GIB
    return f"{name}: {over:.2f} GiB too much; {', '.join(lower)}{adapters}"
