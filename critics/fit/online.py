"""A value head that learns while the policy does, from the outcomes of the policy's own rollouts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from critics.frozen.model import VALUE
from critics.logit import sigmoid
from critics.readouts import value_positions
from pipeline.ids import seed_of
from pipeline.models.policy import weights_digest
from pipeline.training import Trainer, TrainingRow
from pipeline.training.losses import critic_loss
from pipeline.types import Rollout

PRETRAINING_UPDATES = 50
"""On outcomes of the starting policy, before the head is asked for a value (VAPO, arXiv:2504.05118)."""


def outcome_rows(rollouts: Sequence[Rollout]) -> list[TrainingRow]:
    """Returns the rows of one whole update: each state's target is its rollout's outcome; states count alike.

    Outcomes are lam = 1: no value of the head enters its own targets.
    """
    number = sum(len(rollout.steps) for rollout in rollouts)
    rows = []
    for rollout in rollouts:
        columns = {name: np.zeros(len(rollout.token_ids), np.float32) for name in ("weight", "targets")}
        at = value_positions(rollout)
        columns["weight"][at], columns["targets"][at] = 1 / number, rollout.reward
        rows.append(TrainingRow(np.array(rollout.token_ids, np.int32), columns))
    return rows


@dataclass(frozen=True, slots=True)
class OnlineCritic:
    """A critic's trainer, and how rollouts are cut into the steps that have values."""

    trainer: Trainer
    view: Callable[[Sequence[Rollout]], list[Rollout]]

    @property
    def whose_values(self) -> str:
        """What the values table calls the estimates."""
        return f"value head {weights_digest(self.trainer.weights())}"

    def values(self, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """Returns the present head's chance of success at each step of graded rollouts, [T] in (0, 1)."""
        seen = self.view(rollouts)
        return [
            sigmoid(outputs["scores"][value_positions(rollout), VALUE].astype(np.float64))
            for rollout, outputs in zip(seen, self.trainer.forward(outcome_rows(seen)), strict=True)
        ]

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Takes an optimizer step on the outcomes of rollouts that are cut already; returns its metrics."""
        found = self.trainer.update(outcome_rows(rollouts), critic_loss())
        return {f"value/{name}": found[name] for name in ("value_loss", "grad_norm")}

    def pretrain(self, rollouts: Sequence[Rollout], *, each: int, seed: int) -> None:
        """Takes `PRETRAINING_UPDATES` steps, each on `each` rollouts at most, chosen by the seed."""
        seen = self.view([r for r in rollouts if r.reward is not None and r.steps])
        for number in range(PRETRAINING_UPDATES):
            order = sorted(range(len(seen)), key=lambda i: seed_of(seed, "pretraining", number, seen[i].seed))
            self.update([seen[i] for i in order[:each]])
