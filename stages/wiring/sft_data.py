"""What sft trains on: demonstrated episodes as token ids, in an order that follows from the seed."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from env.catalog import offer_of
from env.play.demonstrations import Demonstration
from pipeline.artifacts.commit import MAX_FAILED_SHARE
from pipeline.errors import ArtifactError, ConfigError, ExitCode
from pipeline.ids import seed_of
from pipeline.rows import LeftOut, reasons
from pipeline.runner import Start
from pipeline.types import Task
from stages.settings import Sft
from stages.wiring.demonstrator import Lesson
from stages.wiring.hands import make_pool, num_processes
from stages.wiring.inputs import tasks_by_id

Encoded = tuple[list[int], list[float]]
"""Token ids of a demonstration, and the loss weight of each."""
LESSON = 400
"""Demonstrations that a process plays at once: about a second of work."""


def tasks_to_demonstrate(start: Start, train: list[Task]) -> list[Task]:
    """Returns the training tasks, or throwaway ones that share no cluster with held-out tasks."""
    settings: Sft = start.config.sft
    if not settings.practice_tasks:
        return train
    offer = offer_of(start.config.tasks.environment)
    if offer.demonstrators is None or offer.demonstrators.practice_tasks is None:
        raise ConfigError(
            f"sft.practice_tasks = {settings.practice_tasks}, but the environment {offer.name} makes no "
            "throwaway tasks; set it to 0 to demonstrate on the training tasks"
        )
    own = {task.cluster for task in train}
    held_out = {task.cluster for task in tasks_by_id(start).values()} - own
    return offer.demonstrators.practice_tasks(
        start.config.tasks, settings.practice_tasks, start.seed, held_out
    )


def play_demonstrations(start: Start, train: list[Task]) -> tuple[list[Demonstration], list[LeftOut]]:
    """Returns the demonstrated episodes, in order, and those that an environment failed.

    Processes on the usable cores play them.
    """
    number = start.config.sft.num_demonstrations
    firsts = range(0, number, LESSON)
    pool = make_pool("stages.wiring.demonstrator", num_processes(), start.log_folder)
    with closing(pool):
        pool.start(len(firsts))  # they load while this process makes tasks
        tasks = tasks_to_demonstrate(start, train)
        lessons = (
            Lesson(
                start.config,
                start.seed,
                first,
                tuple(tasks[k % len(tasks)] for k in range(first, min(first + LESSON, number))),
            )
            for first in firsts
        )
        with start.progress(number, "demonstrations") as advance:

            def on_tick(played: int) -> None:
                start.stop_if_asked()
                advance(played)

            found, lost = list[Demonstration](), list[LeftOut]()
            for played in pool.do(lessons, on_tick):
                found += (one for one in played if isinstance(one, Demonstration))
                lost += (one for one in played if isinstance(one, LeftOut))
                refuse_lost(lost, number)  # before the others, which would fail too
            return found, lost


def refuse_lost(lost: Sequence[LeftOut], number: int) -> None:
    """Raises ArtifactError if environments failed too many of the demonstrations."""
    if len(lost) > MAX_FAILED_SHARE * number:
        raise ArtifactError(
            f"environments have failed {len(lost)} of {number} demonstrations ({reasons(lost)}); at most "
            f"{MAX_FAILED_SHARE:.0%} may fail. Next: remove the cause, then the same command goes on",
            code=ExitCode.FAILED_ITEMS,
        )


def refuse_other_lost(lost: Sequence[LeftOut], before: Sequence[int]) -> None:
    """Raises ArtifactError if other demonstrations failed than `before`: a tokenizer is made of all."""
    if (now := [one.row for one in lost]) != list(before):
        raise ArtifactError(
            f"the checkpoint was made without the demonstrations {list(before)}, now environments "
            f"failed {now}; allowed: the same. Next: the same command, if the environment fails now and "
            "then, or make sft SET=--fresh"
        )


def encode(
    tokenizer: Any, demonstration: Demonstration, context_weight: float
) -> tuple[list[int], list[float]]:
    """Returns token ids and loss weights, piece by piece as a player would encode them.

    A token has no weight if all of it is `unlearnt`, whatever a context weighs.
    """
    ids: list[int] = []
    weights: list[float] = []
    texts = [text for text, _ in demonstration.pieces]
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=bool(demonstration.unlearnt))
    for place, ((_, is_trained), piece) in enumerate(
        zip(demonstration.pieces, encoded["input_ids"], strict=True)
    ):
        own = [demonstration.weight * (1.0 if is_trained else context_weight)] * len(piece)
        for start, end in (span for of, *span in demonstration.unlearnt if of == place):
            for token, (first, last) in enumerate(encoded["offset_mapping"][place]):
                own[token] = 0.0 if start <= first and last <= end else own[token]
        ids += piece
        weights += own
    return ids, weights


def that_fit(start: Start, encoded: list[Encoded]) -> list[Encoded]:
    """Returns the demonstrations that fit into a row, and says how many do not; ConfigError if none does."""
    most = start.config.row_tokens
    short = [row for row in encoded if len(row[0]) <= most]
    if len(short) < len(encoded):
        start.say(f"{len(encoded) - len(short)} demonstrations are left out: longer than {most} tokens")
    if not short:
        raise ConfigError(
            f"all {len(encoded)} demonstrations are longer than {most} tokens. Next: a larger "
            "sampling.max_response_tokens"
        )
    return short


def updates_per_epoch(num_rows: int, batch_rows: int) -> int:
    """Returns how many whole batches there are, at least one."""
    return max(1, num_rows // batch_rows)


def rows_of_update(num_rows: int, batch_rows: int, update: int, seed: int) -> list[int]:
    """Returns which rows an update trains on: a pure function of (seed, update).

    An epoch is a fresh shuffle cut into whole batches; what is left over differs from epoch to epoch.
    """
    epoch, place = divmod(update, updates_per_epoch(num_rows, batch_rows))
    order = np.random.default_rng(seed_of(seed, "sft order", epoch)).permutation(num_rows)
    return [int(i) for i in order[place * batch_rows : (place + 1) * batch_rows]]
