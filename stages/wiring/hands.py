"""Who plays as configured: this process, or processes of their own; the rollouts are the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from env.play.team import Hands, Here, OneQueue, Processes
from pipeline.hardware import usable_cores
from pipeline.processes.pool import Pool
from pipeline.processes.shared_weights import Layout
from stages.settings import Config
from stages.settings.engine import Engine
from stages.settings.feedback import Rules
from stages.wiring.subrun import python_path

if TYPE_CHECKING:
    from stages.wiring.player import Seat


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that makes a player; it can be pickled."""

    config: Config
    folder: Path  # of the policy, in Hugging Face form
    temperature: float = 1.0  # 0 is greedy
    weights: Layout | None = None  # where a process of its own finds newer weights than the folder's
    policy_digest: str | None = None  # their name; None stands for the folder's


def unasked(config: Config) -> Config:
    """Returns the configuration of players that ask no model for feedback, where a stage has none written."""
    return config.model_copy(update={"feedback": Rules()})


MOST_PROCESSES = 8
"""Unless `engine.replicas` says more: each has a model and a cache, and takes a core seconds to start."""


def num_players(engine: Engine) -> int:
    """Returns how many processes play; one is this process. The replicas of vLLM are the engine's own."""
    if engine.kind == "vllm" or engine.overlap_shards:
        return 1
    return engine.replicas or num_processes()


def num_processes() -> int:
    """Returns how many processes of one thread each work side by side unless a setting says more."""
    return min(usable_cores(), MOST_PROCESSES)


def make_pool(module: str, number: int, log_folder: Path | None) -> Pool:
    """Returns so many processes of a module under this root, of one thread each, that keep logs."""
    env = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return Pool(module, number, module.rpartition(".")[2], log_folder=log_folder, env=env)


def make_hands(config: Config, log_folder: Path | None = None, seat: Seat | None = None) -> Hands:
    """Returns who plays as configured: players of this process, of `seat`, or processes that keep logs."""
    number = num_players(config.engine)
    if number > 1:
        return Processes(make_pool("stages.wiring.player", number, log_folder))
    if seat is None:  # only now: where processes of their own play, this one needs no torch
        from stages.wiring import player

        seat = player.Seat()
    if config.engine.overlap_shards:
        return OneQueue(seat.player, seat.close, in_parts=False)
    return Here(seat.player, seat.close, in_parts=config.engine.kind != "vllm")
