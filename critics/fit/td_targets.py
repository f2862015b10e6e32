"""Temporal-difference targets: the critic's own values of the next states, held still for an epoch.

    y_i = (1 - lam) V(s_{i+1}) + lam y_{i+1},  y_{T-1} = R

V is the critic as it was when the epoch began. A copy that is held still plays the part of a slowly moving
one and needs no second set of weights beside the trainer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from critics.logit import sigmoid
from critics.readouts import value_positions
from pipeline.training import Trainer, TrainingRow
from pipeline.types import Rollout


def td_targets(values: np.ndarray, reward: float, lam: float) -> np.ndarray:
    """Returns y [T] of one rollout: lam 0 is TD(0), 1 is Monte-Carlo.

    The first of the values [T], V(s_0) .. V(s_{T-1}), enters no target.

    Example:
        >>> td_targets(np.array([0.1, 0.4, 0.8]), 1.0, 0.0)
        array([0.4, 0.8, 1. ])
        >>> td_targets(np.array([0.1, 0.4, 0.8]), 1.0, 0.5)
        array([0.65, 0.9 , 1.  ])
    """
    targets = np.empty(len(values))
    targets[-1] = reward
    for i in range(len(values) - 2, -1, -1):
        targets[i] = (1 - lam) * values[i + 1] + lam * targets[i + 1]
    return targets


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What turns a critic's values into targets of the rows that it is fitted on."""

    lam: float  # trace decay per step
    positions: tuple[np.ndarray, ...]  # per row, [T] where its states are read
    rewards: tuple[float, ...]  # per row, R

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], lam: float) -> Self:
        """Returns the bootstrap of the rows of these rollouts, one each in their order."""
        positions = tuple(value_positions(rollout) for rollout in rollouts)
        return cls(lam, positions, tuple(float(rollout.reward or 0.0) for rollout in rollouts))

    def values(self, trainer: Trainer, rows: Sequence[TrainingRow], shift: float) -> list[list[float]]:
        """Returns the present critic's uncalibrated values of every row's states, as JSON knows them."""
        return [
            sigmoid(out["scores"][at, 0].astype(np.float64) + shift).tolist()
            for out, at in zip(trainer.forward(list(rows)), self.positions, strict=True)
        ]

    def retargeted(self, rows: Sequence[TrainingRow], values: Sequence[Sequence[float]]) -> list[TrainingRow]:
        """Returns the rows with targets from these values; where a row has weight does not change."""
        changed = []
        for row, at, reward, v in zip(rows, self.positions, self.rewards, values, strict=True):
            targets = row.columns["targets"].copy()
            targets[at] = td_targets(np.asarray(v), reward, self.lam)
            changed.append(TrainingRow(row.token_ids, row.columns | {"targets": targets}))
        return changed
