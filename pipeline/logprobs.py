"""Log-probabilities of chosen tokens from hidden states, without the whole matrix of logits.

With a vocabulary of 151,936 the logits of 16,384 tokens take 9.3 GiB in fp32, and as much again for every
intermediate that autograd keeps. Here a piece of tokens at a time is projected, reduced and forgotten, and
projected again in the backward pass. The price is one more product with the output layer.
"""

from __future__ import annotations

from typing import Any

import torch


def chosen_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    piece_tokens: int = 1024,
    entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns log softmax(hidden W^T / temperature) at the targets [N], and the entropies [N] if asked.

    Both are fp32 whatever the inputs are. Entropies carry no gradient.

    Args:
        hidden: [N, D], the state that predicts each target.
        weight: [V, D] of the output layer, which has no bias.
        targets: [N] int64 in [0, V).
        temperature: > 0, that of sampling.
        piece_tokens: tokens whose logits exist at once, >= 1.
        entropy: whether entropies are wanted; they cost a pass over the logits.

    Example:
        >>> hidden, weight = torch.eye(2), torch.eye(2)
        >>> chosen_logprobs(hidden, weight, torch.tensor([0, 0]))[0]
        tensor([-0.3133, -1.3133])
    """
    if piece_tokens < 1:
        raise ValueError(f"piece_tokens = {piece_tokens}; it is at least 1")
    if temperature <= 0:
        raise ValueError(f"temperature = {temperature}; it is > 0")
    if torch.is_autocast_enabled(hidden.device.type):  # the function below must see the same types twice
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        logprobs, entropies = _ChosenLogprobs.apply(
            hidden, weight, targets, temperature, piece_tokens, entropy
        )
    return logprobs, entropies if entropy else None


class _ChosenLogprobs(torch.autograd.Function):
    """The gradient of log p_t at logits z is (onehot_t - p) / temperature."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        piece_tokens: int,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        number = len(targets)
        logprobs = hidden.new_empty(number, dtype=torch.float32)
        normalisers = hidden.new_empty(number, dtype=torch.float32)
        entropies = hidden.new_zeros(number if entropy else 0, dtype=torch.float32)
        for start in range(0, number, piece_tokens):
            piece = slice(start, start + piece_tokens)
            logits = _logits(hidden[piece], weight, temperature)
            chosen = logits.gather(1, targets[piece, None])[:, 0]
            normalisers[piece] = logits.logsumexp(1)
            logprobs[piece] = chosen - normalisers[piece]
            if entropy:
                mean = (logits.softmax(1) * logits).sum(1)
                entropies[piece] = normalisers[piece] - mean
        ctx.save_for_backward(hidden, weight, targets, normalisers)
        ctx.temperature, ctx.piece_tokens = temperature, piece_tokens
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, normalisers = ctx.saved_tensors
        gradient = gradients[0] / ctx.temperature
        for_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Summed in fp32: sixteen bf16 additions would lose what small gradients carry.
        for_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for start in range(0, len(targets), ctx.piece_tokens):
            piece = slice(start, start + ctx.piece_tokens)
            share = gradient[piece]
            logits = _logits(hidden[piece], weight, ctx.temperature)
            slope = logits.sub_(normalisers[piece, None]).exp_().mul_(-share[:, None])
            slope.scatter_add_(1, targets[piece, None], share[:, None])
            slope = slope.to(weight.dtype)
            if for_hidden is not None:
                torch.mm(slope, weight, out=for_hidden[piece])
            if for_weight is not None:
                if weight.dtype == torch.float32:
                    for_weight.addmm_(slope.t(), hidden[piece])
                else:
                    for_weight += slope.t() @ hidden[piece]
        return for_hidden, None if for_weight is None else for_weight.to(weight.dtype), None, None, None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = torch.mm(hidden, weight.t()).float()
    return logits if temperature == 1.0 else logits.div_(temperature)
