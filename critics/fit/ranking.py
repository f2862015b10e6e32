"""Optional ranking of sibling steps: L_rank = softplus(z_worse - z_better) over pairs whose order is clear.

The two states of a pair lie in different rows, which may meet in no micro-batch and on no rank. So the
gradient by the logits is taken here, from a forward pass of the same weights, and written on the rows: the
loss sum_i g_i z_i that the trainer adds up has the same gradient in every weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from critics.fit.rows import COLUMNS
from critics.fit.schedule import Schedule
from critics.logit import sigmoid
from pipeline.ids import seed_of
from pipeline.statistics import APART, standard_errors_apart
from pipeline.training import Trainer, TrainingRow

RANK_COLUMN = "rank_weights"


@dataclass(frozen=True, slots=True)
class RankedSet:
    """States after sibling steps, and which of them are better.

    Attributes:
        states: [N] token ids of each state; it is read at the last one.
        pairs: [P, 2] places of the better and the worse member.
    """

    states: tuple[np.ndarray, ...]
    pairs: np.ndarray


def clear_pairs(num_success: np.ndarray, num_samples: np.ndarray) -> np.ndarray:
    """Returns [P, 2] places (better, worse) of states more than two standard errors apart.

    Example:
        >>> clear_pairs(np.array([0, 2]), np.array([2, 2])).tolist()
        []
        >>> clear_pairs(np.array([1, 8]), np.array([8, 8])).tolist()
        [[1, 0]]
    """
    k, n = num_success, num_samples
    better, worse = np.nonzero(standard_errors_apart(k[:, None], n[:, None], k[None], n[None]) > APART)
    return np.stack([better, worse], axis=1)


def rank_loss(z: np.ndarray, pairs: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the mean of softplus(z_worse - z_better) over pairs, and its gradient [N] by z.

    Args:
        z: [N] value logits.
        pairs: [P, 2] (better, worse), P >= 1.

    Example:
        >>> loss, gradient = rank_loss(np.array([0.0, 0.0]), np.array([[0, 1]]))
        >>> round(loss, 4), gradient.tolist()
        (0.6931, [-0.5, 0.5])
    """
    better, worse = pairs.T
    gap = np.asarray(z, np.float64)[worse] - np.asarray(z, np.float64)[better]
    slope = sigmoid(gap) / len(pairs)
    gradient = np.bincount(worse, slope, len(z)) - np.bincount(better, slope, len(z))
    return float(np.logaddexp(0.0, gap).mean()), gradient


def sets_of_update(sets: Sequence[RankedSet], plan: Schedule, update: int, seed: int) -> list[RankedSet]:
    """Returns the sets of one update: spread over the epoch, a pure function of (seed, epoch, place)."""
    phase, epoch, place = plan.place_of(update)
    order = np.random.default_rng(seed_of("rank order", seed, phase, epoch)).permutation(len(sets))
    return [sets[j] for i, j in enumerate(order) if i * plan.per_epoch // len(sets) == place]


def with_ranking(
    trainer: Trainer, rows: Sequence[TrainingRow], sets: Sequence[RankedSet], *, weight: float
) -> tuple[list[TrainingRow], float]:
    """Returns an update's rows with those of the sets behind them, and the sum of the sets' losses.

    Args:
        trainer: of the weights that the update will start from.
        rows: of the update, without ranking.
        sets: of the update.
        weight: what a set's loss, the mean over its pairs, is multiplied by in the gradient.
    """
    states = [state for one in sets for state in one.states]
    outputs = trainer.forward([TrainingRow(state) for state in states])
    z = np.array([out["scores"][-1, 0] for out in outputs], np.float64)
    total, gradients, start = 0.0, [], 0
    for one in sets:
        loss, gradient = rank_loss(z[start : start + len(one.states)], one.pairs)
        total += loss
        gradients += gradient.tolist()
        start += len(one.states)
    extended = [
        TrainingRow(row.token_ids, row.columns | {RANK_COLUMN: _zeros(row.token_ids)}) for row in rows
    ]
    for state, gradient in zip(states, gradients, strict=True):
        columns = {name: _zeros(state) for name in (*COLUMNS, RANK_COLUMN)}
        columns[RANK_COLUMN][-1] = weight * gradient
        extended.append(TrainingRow(state, columns))
    return extended, total


def _zeros(tokens: np.ndarray) -> np.ndarray:
    return np.zeros(len(tokens), dtype=np.float32)
