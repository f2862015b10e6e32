"""When a fit does what: its phases, epochs and learning rate, the rows of an update, when to look."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from critics.fit.rows import normalised, num_states
from pipeline.ids import seed_of
from pipeline.training import TrainingRow

WEIGHT_DECAY = 0.01
"""AdamW's, of a critic's matrices (start value)."""
PATIENCE = 3
"""Evaluations running without a gain of one standard error, after which a fit has converged (start value)."""
FINAL_RATE = 0.1
"""The cosine ends at this share of its peak."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to fit: first the head alone, then all weights."""

    head_updates: int
    head_learning_rate: float
    learning_rate: float  # peak of phase 2
    max_epochs: float  # of phase 2
    batch_states: int  # of an update
    evaluations_per_epoch: int
    patience: int = PATIENCE
    error_weight: float = 0.5  # of the error head's loss (start value)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When what happens, in updates."""

    per_epoch: int
    head: int  # phase 1
    total: int  # both phases at most
    evaluations: frozenset[int]  # after so many updates the validation states are looked at

    def place_of(self, update: int) -> tuple[str, int, int]:
        """Returns the phase that an update is of (`head`, `all`), its epoch there, and its place in that."""
        phase, since = ("head", update) if update < self.head else ("all", update - self.head)
        return phase, *divmod(since, self.per_epoch)

    def epochs(self, update: int) -> float:
        """Returns epochs of phase 2 taken."""
        return max(0, update - self.head) / self.per_epoch


def schedule(rows: Sequence[TrainingRow], settings: FitSettings) -> Schedule:
    """Returns the schedule that the settings give these rows."""
    states = sum(num_states(row) for row in rows)
    per_epoch = min(len(rows), max(1, math.ceil(states / settings.batch_states)))
    head = settings.head_updates
    total = head + max(1, math.ceil(settings.max_epochs * per_epoch))
    every = per_epoch / settings.evaluations_per_epoch
    looks = {head + math.ceil(j * every) for j in range(1, math.ceil((total - head) / every) + 1)}
    return Schedule(per_epoch, head, total, frozenset({0, head, total} | {u for u in looks if u <= total}))


def learning_rate(plan: Schedule, settings: FitSettings) -> Callable[[int], float]:
    """Returns updates taken -> rate: constant for the head, then a cosine to `FINAL_RATE` of the peak."""

    def rate(update: int) -> float:
        if update < plan.head:
            return settings.head_learning_rate
        done = (update - plan.head) / max(1, plan.total - plan.head)
        return settings.learning_rate * (
            FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * min(1, done)))
        )

    return rate


def rows_of_update(rows: Sequence[TrainingRow], plan: Schedule, update: int, seed: int) -> list[TrainingRow]:
    """Returns the rows of one update: a pure function of (seed, epoch, place in the epoch)."""
    phase, epoch, place = plan.place_of(update)
    order = np.random.default_rng(seed_of("fit order", seed, phase, epoch)).permutation(len(rows))
    return normalised([rows[i] for i in np.array_split(order, plan.per_epoch)[place]])
