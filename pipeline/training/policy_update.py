"""A policy update from baseline sets, and whether engine and trainer agree. Blind to the credit mode."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pipeline.credit.protocol import Credit
from pipeline.credit.updates import Update
from pipeline.engines import Generation
from pipeline.training import Trainer, TrainingRow
from pipeline.training.protocol import Scorer
from pipeline.training.rows import policy_rows
from pipeline.types import Rollout

Logprobs = Mapping[str, np.ndarray]
"""rollout_id -> [len(response)] float32, 0 where nothing was sampled."""


def update_rows(
    update: Update, *, credit: Credit, state: dict[str, float], logprobs: Mapping[str, Logprobs]
) -> tuple[list[TrainingRow], dict[str, float], dict[str, float]]:
    """Returns an update's rows, credit's metrics and its next state: all that its loss is computed from.

    `state` is credit's, from the update before; `logprobs` are from `more_logprobs`.
    """
    advantages, metrics, state = credit.credit([credit_set for _, credit_set in update.sets], state)
    columns = {name: [of[r.rollout_id] for r in update.rollouts] for name, of in logprobs.items()}
    if update.stripped:
        advantages = [*advantages, *(np.full(len(r.steps), gain) for r, gain in update.stripped)]
        num_sampled = len(update.rollouts) - len(update.stripped)
        # No engine sampled the others after their prompt, so there is no gap to weigh.
        engine = [np.array(r.logprobs) for r in update.rollouts[:num_sampled]]
        columns["engine_logprobs"] = [*engine, *columns["old_logprobs"][num_sampled:]]
    metrics = metrics | update.stripped_shares(credit.loss.aggregation)
    weights = update.token_weights(credit.loss.aggregation)
    if update.stripped:
        columns["kl_weight"] = _of_sampled(update, weights)
    return policy_rows(update.rollouts, advantages, weights, columns), metrics, state


def _of_sampled(update: Update, weights: Sequence[float]) -> list[np.ndarray]:
    """Returns [len(response)] of each rollout: weights by which a KL is a mean over what the policy sampled.

    k3 is an estimate on those alone. Stripped tokens are what training makes likely, far from the reference.
    """
    num_sampled = len(update.rollouts) - len(update.stripped)
    masks = [np.asarray(r.loss_mask, np.float64) for r in update.rollouts]
    sampled = [mask * (i < num_sampled) * weights[i] for i, mask in enumerate(masks)]
    share = sum(float(mask.sum()) for mask in sampled)
    return [mask / share if share else mask for mask in sampled]


def more_logprobs(
    updates: Iterable[Update], trainer: Trainer, reference: Scorer | None, *, half_precision: bool
) -> dict[str, Logprobs]:
    """Returns what an iteration's losses need beside the engine's log-probabilities, while nothing has moved.

    `ref_logprobs` are of the reference policy, if there is one. Without `old_logprobs` the engine's are the
    old ones. They are the trainer's own in half precision, and always of stripped rollouts, since what
    sampled those saw another prompt. The reference is asked first, so that the trainer, once it has its turn,
    keeps it.
    """
    members = {r.rollout_id: r for update in updates for r in update.rollouts}
    rollouts = list(members.values())
    unknown = {r.rollout_id for update in updates for r, _ in update.stripped}
    found: dict[str, Logprobs] = {}
    if reference is not None and rollouts:
        found["ref_logprobs"] = logprobs_of(reference, rollouts)
    if asked := [r for r in rollouts if half_precision or r.rollout_id in unknown]:
        engine = {r.rollout_id: np.array(r.logprobs, np.float32) for r in rollouts}
        found["old_logprobs"] = engine | logprobs_of(trainer, asked)
    return found


def logprobs_of(trainer: Scorer, rollouts: Sequence[Rollout]) -> dict[str, np.ndarray]:
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
    return _gap(trainer, policy_rows(rollouts, [np.zeros(len(r.steps)) for r in rollouts]))


def engine_trainer_gap(trainer: Trainer, sampled: Sequence[tuple[Sequence[int], Generation]]) -> float:
    """Returns the mean absolute gap of engine and trainer log-probabilities after fixed prompts, in nats.

    Sampled right after a weight sync.
    """
    rows = []
    for prompt, generation in sampled:
        token_ids = np.array([*prompt, *generation.token_ids], np.int32)
        engine = np.array([*np.zeros(len(prompt)), *generation.logprobs], np.float32)
        weight = (np.arange(len(token_ids)) >= len(prompt)).astype(np.float32)
        rows.append(TrainingRow(token_ids, {"weight": weight, "engine_logprobs": engine}))
    return _gap(trainer, rows)


def _gap(trainer: Trainer, rows: Sequence[TrainingRow]) -> float:
    gaps = [
        np.abs(outputs["logprobs"] - row.columns["engine_logprobs"])[row.columns["weight"] != 0]
        for row, outputs in zip(rows, trainer.forward(rows), strict=True)
    ]
    return float(np.concatenate(gaps).mean())
