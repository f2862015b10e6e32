"""Who plays as configured: this process, or processes of their own; the rollouts are the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from env.play.hands import Here, OneQueue, Processes, Seat
from env.play.team import Hands
from pipeline.hardware import usable_cores
from pipeline.processes.pool import Pool
from pipeline.processes.shared_weights import Layout
from stages.settings import Config
from stages.settings.engine import overlaps_shards

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that makes a player; it can be pickled.

    Attributes:
        config: the settings.
        folder: the policy, in Hugging Face form.
        temperature: > 0, or 0 for greedy.
        weights: where a process of its own finds newer weights than the folder's.
        policy_digest: their name; None stands for the folder's.
    """

    config: Config
    folder: Path
    temperature: float = 1.0
    weights: Layout | None = None
    policy_digest: str | None = None


def make_hands(config: Config, log_folder: Path | None = None, seat: Seat | None = None) -> Hands:
    """Returns who plays as configured.

    Args:
        config: the settings.
        log_folder: where processes of their own keep their logs; None keeps none.
        seat: makes the players of this process; None makes one if players are to be made here.
    """
    engine = config.engine
    if overlaps_shards(engine):
        return OneQueue(seat or _seat(), part_episodes=None, one_thread=False)
    if engine.kind == "vllm":  # whose replicas are processes of their own
        return Here(seat or _seat(), part_episodes=None, one_thread=False)
    number = engine.replicas or usable_cores()
    if number == 1:
        return Here(seat or _seat())
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return Processes(
        Pool(
            "stages.wiring.player_process",
            number,
            "player",
            log_folder=log_folder,
            env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
    )


def _seat() -> Seat:
    """Returns a seat here; a stage whose players have processes of their own never loads their torch."""
    from stages.wiring import player

    return player.Seat()
