"""What each stage samples and trains at most, and the disk and time that this takes."""

from collections.abc import Mapping
from dataclasses import dataclass

from env.catalog import offer_of
from env.play.continuations import SIBLING_SIZE
from pipeline.planner.memory import Shape
from stages.evaluation import NUM_ATTEMPTS
from stages.settings import Actor, Config
from stages.settings.sampling import Chain
from stages.wiring.label_budget import tokens_at_most

GPUS = {  # dense bf16 TFLOP/s and GB/s of memory, by their data sheets
    "h200": (989, 4800),  # SXM
    "h100": (989, 3350),  # SXM
    "a100": (312, 2039),  # SXM, 80 GB
    "rtx4090": (165, 1008),
}
STORED_BYTES = 4.2  # of one token in Parquet: id 0.9, log-probability 3.3
CHECKPOINT_BYTES, EXPORT_BYTES = 12, 4  # of a parameter: fp32 weight and two moments; fp32 weight
MODEL_OF = {"sft": "policy", "actor": "policy", "critic": "critic", "refresh": "critic"}


@dataclass(frozen=True, slots=True)
class Work:
    """What one stage does at most; `times` is how often its model is made and kept."""

    stage: str
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    times: int = 1


def work_of(config: Config) -> list[Work]:
    """Returns what each stage samples, at the longest response, and trains."""
    turns = offer_of(config.tasks.environment).turns_at_most(config.tasks)
    response, report, actor = config.sampling.max_response_tokens, config.critic_report, config.actor
    rollouts = rollouts_of_chain(config.rollouts.chain, config.rollouts.num_tasks or config.tasks.num_train)
    states = config.labels.max_states or rollouts * turns  # every step may be wrong
    labels = states * config.labels.num_continuations
    label_tokens = tokens_at_most(config, labels)
    fitted = rollouts + labels * config.critic.fit_continuations
    critic_tokens = int(fitted * response * config.critic.max_epochs)

    tasks = report.tasks_per_split * len([split for split in config.held_out if split != "val"])
    each = tasks * (1 + report.guided) * (report.draws + turns * report.num_continuations)
    siblings = min(report.sibling_sets, tasks) * SIBLING_SIZE * (1 + report.num_continuations)
    audit = each + siblings + report.fit_tasks * turns * report.num_continuations

    trained = actor.num_iterations * rollouts_of_chain(
        actor.chain, actor.tasks_per_update * actor.updates_per_iteration
    )
    checked, refreshes = watch_of(actor, turns)
    sampled = trained * (1 + actor.max_refills) + checked
    held_out = sum({"val": config.tasks.num_val}.get(s, config.tasks.num_test) for s in config.held_out)
    evaluated = held_out * 2 * (config.evaluation.draws + 1 + NUM_ATTEMPTS)
    work = [
        Work("sft", trained_tokens=config.sft.num_updates * config.sft.batch_rows * response),
        Work("rollouts", rollouts, rollouts * response),
        Work("labels", labels, label_tokens),
        Work("critic", trained_tokens=critic_tokens),
        Work("critic_report", audit, audit * response),
        Work("actor", sampled, sampled * response, trained * response),
        Work("evaluation", evaluated, evaluated * response),
    ]
    if refreshes:
        again, tokens = rollouts + labels + audit, (rollouts + audit) * response + label_tokens
        work.append(
            Work("refresh", refreshes * again, refreshes * tokens, refreshes * critic_tokens, refreshes)
        )
    return work


def rollouts_of_chain(chain: Chain, num_tasks: int) -> int:
    """Returns the rollouts of one group per task."""
    free = round(chain.feedback_free_share * num_tasks)
    return free * chain.feedback_free_draws + (num_tasks - free) * chain.num_attempts * chain.draws


def watch_of(actor: Actor, turns: int) -> tuple[int, int]:
    """Returns the continuations of all paid checks of the critic, and how often it is refreshed."""
    if actor.credit.mode != "v_dapo" or not actor.credit.drift.paid_every:
        return 0, 0
    drift, updates = actor.credit.drift, actor.num_iterations * actor.updates_per_iteration
    checks = min(actor.num_iterations - 1, updates // drift.paid_every)
    states = drift.states + turns - 1  # whole rollouts
    refreshes = {"never": 0, "once": 1, "on_drift": actor.num_iterations}[drift.refresh]
    return checks * states * drift.num_continuations, min(refreshes, checks)


def stored_gb(work: Work, shapes: Mapping[str, Shape]) -> float:
    """Returns the GB of a stage's rollouts, of its model and, if it trains, of the two kept checkpoints."""
    size = 0
    if model := MODEL_OF.get(work.stage):
        checkpoints = 2 * CHECKPOINT_BYTES if work.trained_tokens else 0
        size = (checkpoints + EXPORT_BYTES) * shapes[model].parameters
    if work.stage == "refresh":  # the actor that it is made for, exported and adopted
        size += 2 * EXPORT_BYTES * shapes["policy"].parameters
    return (work.sampled_tokens * STORED_BYTES + work.times * size) / 1e9


def least_hours(
    work: Work, config: Config, shapes: Mapping[str, Shape], live: int, context: int
) -> float | None:
    """Returns a lower bound: arithmetic at the data sheet's speed, decoding at its memory bandwidth."""
    hardware, engine = config.hardware, config.engine
    if not (hardware.num_gpus and hardware.gpu):
        return None
    tflops, bandwidth_gbs = GPUS[hardware.gpu]
    shape, trained = shapes["policy"], shapes[MODEL_OF.get(work.stage, "policy")]
    replicas, split = (engine.replicas, engine.tensor_parallel) if engine.kind == "vllm" else (1, 1)
    flops = hardware.num_gpus * tflops * 1e12
    train = work.trained_tokens * trained.training_flops(context, recompute=config.training.recompute) / flops
    element = 2 if engine.dtype == "bfloat16" else 4
    steps = work.sampled_tokens / max(1, live * replicas)
    read = shape.parameters * element + live * context / 2 * shape.cache_bytes(element)
    decode = steps * read / (bandwidth_gbs * 1e9 * split)
    return (train + max(decode, work.sampled_tokens * 2 * shape.matmul_parameters / flops)) / 3600
