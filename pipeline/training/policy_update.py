"""A policy update from baseline sets, and whether engine and trainer agree. Blind to the credit mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.credit.batch import Update
from pipeline.credit.protocol import Credit
from pipeline.engines import Generation
from pipeline.training import Trainer, TrainingRow
from pipeline.training.rows import policy_rows
from pipeline.types import Rollout

Logprobs = Mapping[str, np.ndarray]
"""rollout_id -> [len(response)] float32, 0 where nothing was sampled."""


def update_rows(
    update: Update,
    *,
    credit: Credit,
    state: dict[str, float],
    logprobs: Mapping[str, Logprobs],
) -> tuple[list[TrainingRow], dict[str, float], dict[str, float]]:
    """Returns an update's rows, credit's metrics and its next state: all that its loss is computed from.

    Args:
        update: sets of rollouts.
        credit: who gets how much advantage.
        state: credit's, from the update before.
        logprobs: `old_logprobs` of the trainer before the iteration's updates, without which the engine's are
            taken; `ref_logprobs` of the reference policy, needed if the loss has a KL term.
    """
    advantages, metrics, state = credit.credit([credit_set for _, credit_set in update.sets], state)
    columns = {name: [of[r.rollout_id] for r in update.rollouts] for name, of in logprobs.items()}
    weights = update.token_weights(credit.loss.aggregation)
    return policy_rows(update.rollouts, advantages, weights, columns), metrics, state


def logprobs_of(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, np.ndarray]:
    """Returns rollout_id -> [len(response)] log-probabilities of its sampled tokens, 0 elsewhere."""
    outputs = trainer.forward(policy_rows(rollouts, [np.zeros(len(r.steps)) for r in rollouts]))
    return {
        r.rollout_id: out["logprobs"][len(r.prompt_token_ids) :]
        for r, out in zip(rollouts, outputs, strict=True)
    }


def logprob_gap(trainer: Trainer, rollouts: Sequence[Rollout]) -> float:
    """Returns the mean absolute gap of engine and trainer log-probabilities on sampled tokens, in nats.

    Only meaningful while the trainer still holds the weights that sampled the rollouts.
    """
    own = logprobs_of(trainer, rollouts)
    gaps = [
        np.abs(own[r.rollout_id] - np.asarray(r.logprobs, np.float32))[np.asarray(r.loss_mask) == 1]
        for r in rollouts
    ]
    return float(np.concatenate(gaps).mean())


def engine_trainer_gap(trainer: Trainer, sampled: Sequence[tuple[Sequence[int], Generation]]) -> float:
    """Returns the mean absolute gap of engine and trainer log-probabilities after fixed prompts, in nats.

    Asked right after a weight sync, before anything expensive is sampled with the weights.

    Args:
        trainer: of the weights.
        sampled: prompts, and what the engine sampled after them.
    """
    rows = []
    for prompt, generation in sampled:
        want = np.zeros(len(prompt) + len(generation.token_ids), np.float32)
        want[len(prompt) :] = 1
        rows.append(TrainingRow(np.array([*prompt, *generation.token_ids], np.int32), {"want": want}))
    gaps = [
        np.abs(outputs["logprobs"][-len(generation.logprobs) :] - generation.logprobs)
        for outputs, (_, generation) in zip(trainer.forward(rows), sampled, strict=True)
    ]
    return float(np.concatenate(gaps).mean())
