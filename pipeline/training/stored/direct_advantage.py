"""Direct advantage: a step's log-ratio to the reference is regressed on its advantage among siblings."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pipeline.training import TrainingRow
from pipeline.training.packing import Batch
from pipeline.training.rows import policy_rows
from pipeline.types import Rollout

MAX_LOG_RATIO = 10.0
"""Nats that a step is asked for at most (start value; the bound is ours)."""


def direct_advantage_rows(rollouts: Sequence[Rollout], advantages: Sequence[np.ndarray]) -> list[TrainingRow]:
    """Returns rows for `direct_advantage_loss`: a step each, behind its prompt, and [1] its advantage.

    pi_0 are the log-probabilities that were stored when the step was sampled, so only siblings of the same
    prompt may be given: bare ones, never stripped ones.
    """
    shares = [1 / (len(rollouts) * r.num_trainable_tokens) for r in rollouts]
    return policy_rows(rollouts, advantages, shares)


def direct_advantage_loss(
    temperature: float, outputs: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the mean over steps of 1/2 [clip(A/temperature, -10, 10) - log(pi(a|s) / pi_0(a|s))]^2.

    A = V(s a) - mean of V over the siblings of a; log-probabilities are summed over the step. Reads outputs
    `logprobs`; columns `weight`, `advantages` and `old_logprobs`, which are pi_0's. Metrics:
    `step_log_ratio`, the mean size of what was reached, and `target_clipped_share`.

    Source: arXiv:2412.18279; the temperature is its beta (.01, which asks for 10 nats of a gap of .1).
    """
    at = batch.columns["weight"] != 0
    row = torch.repeat_interleave(
        torch.arange(len(batch.lengths), device=at.device), torch.tensor(batch.lengths, device=at.device)
    )

    def per_row(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.new_zeros(len(batch.lengths)).index_add(0, row[at], numbers[at])

    weight = per_row(batch.columns["weight"])  # 0 of a row that only keeps an idle rank in step
    advantages = per_row(batch.columns["weight"] * batch.columns["advantages"]) / weight.where(weight > 0, 1)
    wanted = advantages / temperature
    log_ratio = per_row(outputs["logprobs"] - batch.columns["old_logprobs"])
    errors = wanted.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) - log_ratio
    loss = (weight * 0.5 * errors**2).sum()
    return loss, {
        "direct_advantage_loss": loss.detach(),
        "step_log_ratio": (weight * log_ratio.abs()).sum().detach(),
        "target_clipped_share": (weight * (wanted.abs() > MAX_LOG_RATIO)).sum(),
    }
