"""Losses as plain sums over tokens or states; each returns a `Loss` for `Trainer.update`.

Whoever builds the rows has divided the `weight` column by the whole update's total, so a loss never
normalises: the result cannot depend on micro-batches, packing or ranks. All metrics add up in the same way.
"""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from pipeline.credit.options import LossOptions
from pipeline.training.packing import Batch, Loss

_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0
_MAX_ENGINE_WEIGHT = 2.0  # importance weight of the engine's samples, truncated


def clipped_policy_terms(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, options: LossOptions
) -> torch.Tensor:
    """Returns each token's loss L = max(-A r, -A clip(r, 1 - low, 1 + high)), at most -dual_clip A if A < 0.

    r = exp(clamp(logprob - old_logprob, -20, 20)); old is the policy before this iteration's updates.

    Source: Yu et al., arXiv:2503.14476, eq. 8-10; dual clip: Ye et al., arXiv:1912.09729, eq. 5.

    Example:
        On policy the ratio is 1 and the loss is -A; a doubled probability is clipped at 1.28.

        >>> same, doubled = torch.zeros(1), torch.full((1,), 0.6931)
        >>> clipped_policy_terms(same, same, torch.ones(1), LossOptions())
        tensor([-1.])
        >>> clipped_policy_terms(doubled, same, torch.ones(1), LossOptions())
        tensor([-1.2800])
    """
    ratio = torch.exp((logprobs - old_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    clipped = ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high)
    terms = torch.maximum(-advantages * ratio, -advantages * clipped)
    if options.dual_clip is None:
        return terms
    return torch.where(advantages < 0, torch.minimum(terms, -options.dual_clip * advantages), terms)


def k3(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """Returns each token's estimate of KL(actor || reference), min(exp(d) - d - 1, 10), d = ref - actor.

    Its mean over the actor's tokens is the divergence, but its gradient belongs to KL(reference || actor).
    The bound stops the gradient of tokens beyond it (d above 2.6 nats), whose gradient 1 - exp(d) would
    outweigh the rest of an update: -22,025 at d = 10.

    Source: Schulman, "Approximating KL divergence" (2020), k3; Shao et al., arXiv:2402.03300, eq. 4. The
    bound is verl's (`kl_penalty`, low_var_kl).

    Example:
        >>> k3(torch.tensor([-1.0, -1.0, -9.0]), torch.tensor([-1.0, -2.0, -1.0]))
        tensor([ 0.0000,  0.3679, 10.0000])
    """
    difference = (ref_logprobs - logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (torch.exp(difference) - difference - 1.0).clamp(max=_MAX_K3)


def policy_loss(options: LossOptions) -> Loss:
    """Returns the clipped policy loss: sum of weight * min(pi_old/pi_engine, 2) * L_t [+ kl * k3].

    Reads outputs `logprobs`; columns `weight`, `advantages`, `old_logprobs`, `engine_logprobs`, and
    `ref_logprobs` if `options.kl` > 0. Metrics are means by weight: `policy_loss`,
    `clip_high_share` and `clip_low_share` (tokens that the clip left without a gradient), `dual_clip_share`,
    `old_kl` (k3 to the old policy), `ref_kl`, `sampled_entropy` (-old_logprob: at temperature 1 an
    unbiased estimate of the entropy, without stripped rows) and `engine_gap` (mean |old - engine|). Unclipped
    it is `sft_loss`.
    """
    if not options.clipped:
        return sft_loss
    return partial(_policy_loss, options)  # ranks in other processes must be able to unpickle it


def _policy_loss(
    options: LossOptions, outputs: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    at = batch.columns["weight"] != 0
    weight, advantages, old = (batch.columns[n][at] for n in ("weight", "advantages", "old_logprobs"))
    logprobs = outputs["logprobs"][at]
    terms = clipped_policy_terms(logprobs, old, advantages, options)
    gap = (old - batch.columns["engine_logprobs"][at]).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    metrics = {"engine_gap": (weight * gap.abs()).sum()}
    total = policy_sum = (weight * torch.exp(gap).clamp(max=_MAX_ENGINE_WEIGHT) * terms).sum()
    if options.kl > 0:
        kl_weight = batch.columns["kl_weight"][at] if "kl_weight" in batch.columns else weight
        kl = (kl_weight * k3(logprobs, batch.columns["ref_logprobs"][at])).sum()
        total = total + options.kl * kl
        metrics["ref_kl"] = kl.detach()
    with torch.no_grad():
        ratio = torch.exp((logprobs - old).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
        high = (advantages > 0) & (ratio > 1 + options.clip_high)
        low = (advantages < 0) & (ratio < 1 - options.clip_low)
        dual = (advantages < 0) & (ratio > (options.dual_clip or float("inf")))
        metrics |= {
            "policy_loss": policy_sum.detach(),
            "clip_high_share": (weight * high).sum(),
            "clip_low_share": (weight * low).sum(),
            "dual_clip_share": (weight * dual).sum(),
            "old_kl": (weight * k3(logprobs, old)).sum(),
            "sampled_entropy": -(weight * old).sum(),
        }
    return total, metrics


def sft_loss(
    outputs: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the cross-entropy, sum of -weight * logprob, in nats per token for weights that sum to 1."""
    loss = -(batch.columns["weight"] * outputs["logprobs"]).sum()
    return loss, {"cross_entropy": loss.detach()}


def critic_loss(*, base_logit: float = 0.0, error_weight: float = 0.5) -> Loss:
    """Returns the critic's loss: sum of weight * BCE(z + b0, target) + error_weight * BCE of the error head.

    Reads outputs `scores` [N, 2] (value logit z, error logit); columns `weight` and `targets` at value
    read-outs, and `error_weights` and `error_targets` (0 ok, 1 wrong) at its own if it has an error head.
    Targets are soft, in [0, 1]: on counts, cross-entropy is minimised at the true value (arXiv:2412.18279).
    b0 is the logit of the base rate, so that a zero head predicts it.
    """
    return partial(_critic_loss, base_logit, error_weight)


def _critic_loss(
    base_logit: float, error_weight: float, outputs: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    scores = outputs["scores"]
    value = weighted_bce(scores[..., 0] + base_logit, batch.columns["targets"], batch.columns["weight"])
    metrics = {"value_loss": value.detach()}
    if "error_weights" not in batch.columns or error_weight == 0:
        return value, metrics
    error = weighted_bce(scores[..., 1], batch.columns["error_targets"], batch.columns["error_weights"])
    return value + error_weight * error, metrics | {"error_loss": error.detach()}


def weighted_bce(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Returns the sum of weight * BCE(sigmoid(logit), target) where the weight is not 0, as a scalar.

    Example:
        >>> weighted_bce(torch.zeros(2), torch.tensor([0.3, 1.0]), torch.tensor([1.0, 0.0]))
        tensor(0.6931)
    """
    at = weights != 0
    bce = F.binary_cross_entropy_with_logits(logits[at], targets[at], reduction="none")
    return (weights[at] * bce).sum()
