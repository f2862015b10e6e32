"""Epochs over rows that are there already, until looks at what is held out find nothing better."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pipeline.artifacts.failpoints import failpoint
from pipeline.artifacts.runner import Start
from pipeline.artifacts.signals import StopRequested
from pipeline.training import Trainer
from pipeline.training.stored.stopping import best_look, is_over
from stages.settings import Config
from stages.wiring.sft_data import rows_of_update, updates_per_epoch

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Trained(Generic[L]):
    """What came of it."""

    folder: Path  # an output of the stage: the model of the best look
    looks: list[L]  # at the start, and after each epoch
    per_epoch: int  # updates
    num_updates: int  # taken
    best: int  # number of updates behind the best look
    ended_by_itself: bool


def train_to_best(
    start: Start[Config],
    trainer: Trainer,
    *,
    num_rows: int,
    batch_rows: int,
    max_epochs: int,
    patience: int,
    train: Callable[[Sequence[int]], dict[str, float]],
    look: Callable[[int, int], L],
    value: Callable[[L], float],
) -> Trained[L]:
    """Trains until `patience` looks running bring no new best, and closes the trainer.

    Goes on from the last checkpoint, where there is one: each look saves one, and a stop.

    Args:
        start: of the stage, to which the best model belongs in the end, as its folder `policy`.
        trainer: before any update.
        num_rows: rows to train on.
        batch_rows: of an update.
        max_epochs: at most.
        patience: looks.
        train: places of an update's rows -> metrics of an update on them.
        look: (epoch, updates) -> what is seen of the present weights, in JSON's types.
        value: how good that is; of equally good ones the first is kept.
    """
    per_epoch = updates_per_epoch(num_rows, batch_rows)
    looks: list[L] = []
    kept = start.folder / "_looks"  # the best weights so far
    if found := start.checkpoints.latest():
        trainer.load_checkpoint(found[0])
        looks = list(found[1]["looks"])
    else:
        shutil.rmtree(kept, ignore_errors=True)

    def values() -> list[float]:
        return [value(each) for each in looks]

    def save() -> None:
        start.checkpoints.save(trainer.num_updates, trainer.save_checkpoint, {"looks": looks})

    def look_and_save() -> None:
        looks.append(look(len(looks), trainer.num_updates))
        now = kept / str(trainer.num_updates)
        if best_look(values()) == len(looks) - 1:
            shutil.rmtree(now, ignore_errors=True)
            trainer.export(now)
        save()
        for former in kept.iterdir():  # only now: a start that is killed before goes on from the last save
            if former.name != str(best_look(values()) * per_epoch):
                shutil.rmtree(former)

    if not looks:
        look_and_save()
    with start.progress(max_epochs * per_epoch, "updates at most", trainer.num_updates) as advance:
        while len(looks) <= max_epochs and not is_over(values(), patience):
            try:
                start.stop_if_asked()
            except StopRequested:
                save()
                raise
            rows = rows_of_update(num_rows, batch_rows, trainer.num_updates, start.seed)
            failpoint(f"{start.stage}.update.before")
            metrics = train(rows)
            failpoint(f"{start.stage}.update.after")
            start.metrics({"update": trainer.num_updates, **metrics})
            advance(1)
            if trainer.num_updates % per_epoch == 0:
                look_and_save()
    trainer.close()
    best = best_look(values()) * per_epoch
    folder = start.move_to_output(kept / str(best), "policy")
    shutil.rmtree(kept)
    return Trained(folder, looks, per_epoch, trainer.num_updates, best, is_over(values(), patience))
