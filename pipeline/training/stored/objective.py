"""What an objective of stored rollouts is, and each by its kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from pipeline.credit import LossOptions
from pipeline.training import Trainer, TrainingRow
from pipeline.training.losses import policy_loss, sft_loss
from pipeline.training.packing import Loss, packed
from pipeline.training.stored.advantage_weighted import advantage_weighted_rows
from pipeline.training.stored.clipped import clipped_rows
from pipeline.training.stored.direct_advantage import direct_advantage_loss, direct_advantage_rows
from pipeline.training.stored.likelihood import likelihood_rows
from pipeline.types import Rollout

Rows = Callable[[Sequence[Rollout], Sequence[np.ndarray]], list[TrainingRow]]
"""Rollouts and [T_i] advantages of their steps -> the rows of one update."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One way to learn from rollouts that are there already."""

    rows: Rows
    loss: Loss  # a plain sum over the rows' tokens, see `pipeline.training.losses`


def make_objective(kind: str, *, temperature: float = 0.0) -> Objective:
    """Returns an objective by its kind; those that aim at pi_0 exp(A/T) take the temperature T."""
    return {
        "likelihood": Objective(likelihood_rows, sft_loss),
        "advantage_weighted": Objective(partial(advantage_weighted_rows, temperature), sft_loss),
        "clipped": Objective(clipped_rows, policy_loss(LossOptions())),
        "v_dapo": Objective(clipped_rows, policy_loss(LossOptions())),
        "direct_advantage": Objective(direct_advantage_rows, partial(direct_advantage_loss, temperature)),
    }[kind]


def effective_size(rows: Sequence[TrainingRow]) -> float:
    """Returns how many equally weighted tokens estimate a mean as well: (sum w)^2 / sum w^2 (Kish, 1965)."""
    weights = np.concatenate([row.columns["weight"] for row in rows]).astype(np.float64)
    return float(weights.sum() ** 2 / (weights**2).sum())


def held_out_gain(trainer: Trainer, rows: Sequence[TrainingRow], loss: Loss) -> float:
    """Returns minus the loss of the present weights on held-out rows, by which ratio objectives are judged.

    What they learn from failures is not how probable successes are: a clipped loss may raise its advantages
    while tokens that every rollout has in common become less probable.
    """
    logprobs = torch.from_numpy(np.concatenate([out["logprobs"] for out in trainer.forward(rows)]))
    return -float(loss({"logprobs": logprobs}, packed(rows, range(len(rows))))[0])
