"""Says whether a configuration fits its hardware, and what it would cost at least: `vdapo plan CONFIG`.

Takes no GPU, no memory and no data: the model exists as shapes only.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from env.play.continuations import SIBLING_SIZE
from pipeline.config import load_config
from pipeline.errors import ExitCode
from pipeline.planner.gpus import GPUS
from pipeline.planner.memory import GIB, Shape, shape_of
from stages.evaluation import NUM_ATTEMPTS
from stages.settings import Chain, Config
from stages.wiring.label_budget import tokens_at_most
from stages.wiring.plan_memory import Memory, advice, critic_config, memory_of, model_config, unused_gpus

STORED_BYTES = 4.2  # of one token in Parquet: id 0.9, log-probability 3.3
CHECKPOINT_BYTES, EXPORT_BYTES = 12, 4  # of a parameter: fp32 weight and two moments; fp32 weight


@dataclass(frozen=True, slots=True)
class Work:
    """What one stage does at most.

    Attributes:
        stage: its name.
        rollouts: sampled.
        sampled_tokens: of these, at the longest response.
        trained_tokens: over all its updates.
        times: how often its models are made and kept.
    """

    stage: str
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    times: int = 1


def rollouts_of_chain(chain: Chain, num_tasks: int) -> int:
    """Returns the rollouts of one group per task, at most."""
    free = round(chain.feedback_free_share * num_tasks)
    return free * chain.feedback_free_draws + (num_tasks - free) * chain.num_attempts * chain.draws


def num_checks(config: Config) -> int:
    """Returns the paid checks of the critic, at most."""
    actor, credit = config.actor, config.actor.credit
    if credit.mode != "v_dapo" or not credit.drift.paid_every:
        return 0
    updates = actor.num_iterations * actor.updates_per_iteration
    return min(actor.num_iterations - 1, updates // credit.drift.paid_every)


def num_refreshes(config: Config) -> int:
    """Returns how often the critic is refreshed for the actor, at most."""
    credit = config.actor.credit
    if credit.mode != "v_dapo":
        return 0
    most = {"never": 0, "once": 1, "on_drift": config.actor.num_iterations}[credit.drift.refresh]
    return min(most, num_checks(config))


def checks_of_drift(config: Config, turns: int) -> int:
    """Returns the continuations of all paid checks of the critic, at most."""
    if config.actor.credit.mode != "v_dapo":
        return 0
    drift = config.actor.credit.drift
    states = drift.states + turns - 1  # whole rollouts
    return num_checks(config) * states * drift.num_continuations


def work_of(config: Config) -> list[Work]:
    """Returns what each stage samples and trains at most."""
    from env.catalog import offer_of

    turns = offer_of(config.tasks.environment).turns_at_most(config.tasks)
    rollouts = rollouts_of_chain(config.rollouts.chain, config.rollouts.num_tasks or config.tasks.num_train)
    response = config.sampling.max_response_tokens
    states = config.labels.max_states or rollouts * turns  # every step may be wrong
    labels = states * config.labels.num_continuations
    label_tokens = tokens_at_most(config, labels)
    report = config.critic_report
    unseen = [split for split in config.held_out if split != "val"]  # whose clusters are known
    audited = len(unseen) * report.tasks_per_split * (1 + report.guided)
    heard = report.draws + turns * report.num_continuations  # of an audited task and context
    sets = min(report.sibling_sets, len(unseen) * report.tasks_per_split)
    siblings = sets * SIBLING_SIZE * (1 + report.num_continuations)
    fitted = report.fit_tasks * turns * report.num_continuations
    heard_in_all = audited * heard + siblings + fitted
    fitted_rollouts = rollouts + labels * config.critic.fit_continuations
    critic_tokens = int(fitted_rollouts * response * config.critic.max_epochs)
    actor = config.actor
    tasks = actor.tasks_per_update * actor.updates_per_iteration
    trained = actor.num_iterations * rollouts_of_chain(actor.chain, tasks)
    sampled = trained * (1 + actor.max_refills) + checks_of_drift(config, turns)
    evaluation = config.evaluation
    sizes = {"val": config.tasks.num_val}
    evaluated = sum(sizes.get(split, config.tasks.num_test) for split in config.held_out)
    per_task = 2 * (evaluation.draws + 1 + NUM_ATTEMPTS)
    sft_rows = config.sft.num_updates * config.sft.batch_rows
    work = [
        Work("sft", trained_tokens=sft_rows * response),
        Work("rollouts", rollouts, rollouts * response),
        Work("labels", labels, label_tokens),
        Work("critic", trained_tokens=critic_tokens),
        Work("critic_report", heard_in_all, heard_in_all * response),
        Work(
            "actor",
            sampled,
            sampled * response,
            trained * response,
        ),
        Work(
            "evaluation",
            evaluated * per_task,
            evaluated * per_task * response,
        ),
    ]
    if refreshes := num_refreshes(config):
        again = rollouts + labels + heard_in_all
        tokens = (rollouts + heard_in_all) * response + label_tokens
        work.append(
            Work("refresh", refreshes * again, refreshes * tokens, refreshes * critic_tokens, refreshes)
        )
    return work


def stored_models(work: Work, shapes: Mapping[str, Shape]) -> float:
    """Returns the GB of a stage's model and, if it trains, of the two checkpoints that stay beside it."""
    kind = {"sft": "policy", "actor": "policy", "critic": "critic", "refresh": "critic"}.get(work.stage)
    if kind is None:
        return 0.0
    checkpoints = 2 * CHECKPOINT_BYTES if work.trained_tokens else 0
    size = (checkpoints + EXPORT_BYTES) * shapes[kind].parameters
    if work.stage == "refresh":  # the actor that it is made for, exported and adopted
        size += 2 * EXPORT_BYTES * shapes["policy"].parameters
    return work.times * size / 1e9


def least_hours(
    work: Work, config: Config, shapes: Mapping[str, Shape], live: int, context: int
) -> float | None:
    """Returns a lower bound: arithmetic at the data sheet's speed, decoding at its memory bandwidth."""
    shape, trained = shapes["policy"], shapes["critic" if work.stage in ("critic", "refresh") else "policy"]
    hardware = config.hardware
    if not (hardware.num_gpus and hardware.gpu):
        return None
    gpu, engine = GPUS[hardware.gpu], config.engine
    replicas, split = (engine.replicas, engine.tensor_parallel) if engine.kind == "vllm" else (1, 1)
    flops = hardware.num_gpus * gpu.tflops * 1e12
    train = work.trained_tokens * trained.training_flops(context, recompute=config.training.recompute) / flops
    element = 2 if engine.dtype == "bfloat16" else 4
    steps = work.sampled_tokens / max(1, live * replicas)
    read = shape.parameters * element + live * context / 2 * shape.cache_bytes(element)
    decode = steps * read / (gpu.bandwidth_gbs * 1e9 * split)
    return (train + max(decode, work.sampled_tokens * 2 * shape.matmul_parameters / flops)) / 3600


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


def add_to(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    parser = commands.add_parser("plan", help="whether a configuration fits its hardware, and its cost")
    parser.add_argument("config", type=Path, help="a YAML, such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")
    parser.set_defaults(run=run)


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
    console.print(_cost_table(config, shapes, memory, context))
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


def _cost_table(config: Config, shapes: Mapping[str, Shape], memory: Memory, context: int) -> Table:
    table = Table(
        "stage",
        "rollouts",
        "sampled tokens",
        "trained tokens",
        "GB on disk",
        "hours",
        title="at most; hours: at least",
    )
    rows = [
        (
            work,
            work.sampled_tokens * STORED_BYTES / 1e9 + stored_models(work, shapes),
            least_hours(work, config, shapes, memory.live, context),
        )
        for work in work_of(config)
    ]
    for work, disk, hours in rows:
        table.add_row(
            work.stage,
            f"{work.rollouts:,}",
            f"{work.sampled_tokens:,}",
            f"{work.trained_tokens:,}",
            f"{disk:.2f}",
            "-" if hours is None else f"{hours:.2f}",
        )
    known = [hours for _, _, hours in rows if hours is not None]
    table.add_row(
        "all",
        f"{sum(work.rollouts for work, _, _ in rows):,}",
        f"{sum(work.sampled_tokens for work, _, _ in rows):,}",
        f"{sum(work.trained_tokens for work, _, _ in rows):,}",
        f"{sum(disk for _, disk, _ in rows):.2f}",
        f"{sum(known):.2f}" if known else "-",
    )
    return table
