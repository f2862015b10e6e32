"""Epochs over rows that are there already, until looks at what is held out find nothing better to keep."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pipeline.artifacts.signals import StopRequested
from pipeline.models.policy import load_policy, save_policy
from pipeline.processes.failpoints import failpoint
from pipeline.runner import Start
from pipeline.training import Trainer
from pipeline.training.stored.stopping import is_over
from stages.settings import Config
from stages.wiring.sft_data import rows_of_update, updates_per_epoch

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Trained(Generic[L]):
    """What came of it."""

    folder: Path  # an output of the stage: the model of the look that was kept
    looks: list[L]  # at the start, and after each epoch
    per_epoch: int  # updates
    num_updates: int  # taken
    kept: int  # number of updates behind that look
    ended_by_itself: bool


def train_epochs(
    start: Start[Config],
    trainer: Trainer,
    *,
    num_rows: int,
    batch_rows: int,
    max_epochs: int,
    patience: int,
    train: Callable[[Sequence[int]], dict[str, float]],
    look: Callable[[int, int], L],
    keep: Callable[[Sequence[L]], int],
) -> Trained[L]:
    """Trains until `patience` looks running are not kept, and closes the trainer.

    Goes on from the last checkpoint, where there is one: each look saves one, and a stop. None does before
    the first update: weights and moments are three policies on the disk, and what they are is known.

    Args:
        start: of the stage, to which the kept model belongs in the end, as its folder `policy`. It trains
            the policy of `stored` where that is an input, else sft's.
        trainer: of it, before any update.
        num_rows: rows to train on.
        batch_rows: of an update.
        max_epochs: at most.
        patience: looks.
        train: places of an update's rows -> metrics of an update on them.
        look: (epoch, updates) -> what is seen of the present weights, in JSON's types.
        keep: looks so far -> place of the one whose weights are kept: the last, or the same as before.
    """
    per_epoch = updates_per_epoch(num_rows, batch_rows)
    looks: list[L] = []
    weights = start.folder / "_looks"  # of the look that is kept so far
    if found := start.checkpoints.latest():
        trainer.load_checkpoint(found[0])
        looks = list(found[1]["looks"])
    else:
        shutil.rmtree(weights, ignore_errors=True)

    def save() -> None:
        start.checkpoints.save(trainer.num_updates, trainer.save_checkpoint, {"looks": looks})

    def look_and_save() -> None:
        looks.append(look(len(looks), trainer.num_updates))
        now, kept = weights / str(trainer.num_updates), keep(looks)
        if kept == len(looks) - 1:
            shutil.rmtree(now, ignore_errors=True)
            trainer.export(now)
        save()
        # Only now, and none that the save before names: from that one a start goes on if this one is damaged.
        named = {str(place * per_epoch) for place in (kept, keep(looks[:-1]))}
        for former in weights.glob("*"):
            if former.name not in named:
                shutil.rmtree(former)

    if not looks:
        looks.append(look(0, 0))
    with start.progress(max_epochs * per_epoch, "updates at most", trainer.num_updates) as advance:
        while len(looks) <= max_epochs and not is_over(len(looks), keep(looks), patience):
            try:
                start.stop_if_asked()
            except StopRequested:
                if trainer.num_updates:
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
    kept = keep(looks)
    if kept == 0:  # nobody has written these weights: they are the starting policy's
        source = load_policy(start.inputs["stored" if "stored" in start.inputs else "sft"].path("policy"))
        save_policy(source.model, source.tokenizer, weights / "0")
    folder = start.move_to_output(weights / str(kept * per_epoch), "policy")
    shutil.rmtree(weights)
    over = is_over(len(looks), kept, patience)
    return Trained(folder, looks, per_epoch, trainer.num_updates, kept * per_epoch, over)
