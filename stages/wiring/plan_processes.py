"""Which processes the actor and the critic's fit have, as the planner sees them."""

from pipeline.planner.processes import Processes
from stages.settings import Config
from stages.wiring.hands import num_players


def actor_processes(config: Config, needs_reference: bool) -> Processes:
    """Returns the stage itself, whoever plays, and the ranks of each trainer."""
    gpus, engine, training = config.hardware.num_gpus > 0, config.engine, config.training
    credit, players = config.actor.credit, num_players(config.engine)
    number, on_gpu, contexts, exchanging = 1 + (players if players > 1 else 0), 0, 0, 0
    if engine.kind == "vllm":
        workers = engine.tensor_parallel
        number += engine.replicas * (workers if workers == 1 else 1 + workers)
        on_gpu, contexts, exchanging = engine.replicas * workers, 1, int(workers > 1)
    here = config.actor.needs_critic or training.backend == "torch"  # on the stage's own context
    if training.backend == "deepspeed":
        trained = 1 + (credit.mode == "actor_critic")
        groups = trained + needs_reference
        number += groups * training.num_ranks
        on_gpu += groups * training.num_ranks
        contexts += groups
        exchanging += trained if training.num_ranks > 1 else 0
    return Processes(number, on_gpu + here, contexts + here, exchanging) if gpus else Processes(number)


def critic_processes(config: Config) -> Processes:
    """Returns the processes of the critic's fit."""
    training = config.training
    if training.backend == "torch":
        return Processes(1, 1, 1) if config.hardware.num_gpus else Processes(1)
    ranks = training.num_ranks
    return (
        Processes(1 + ranks, ranks, 1, int(ranks > 1)) if config.hardware.num_gpus else Processes(1 + ranks)
    )
