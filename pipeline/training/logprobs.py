"""Log-probabilities of chosen tokens from hidden states, without the whole matrix of logits.

With a vocabulary of 151,936 the logits of 16,384 tokens take 9.3 GiB in fp32, and as much again for every
intermediate that autograd keeps. Here a tile of them at a time, some tokens by some entries of the
vocabulary, is projected, reduced and forgotten, and projected again in the backward pass. The price is one
more product with the output layer.
"""

from typing import Any

import torch

TILE_ENTRIES = 8_192
"""Entries of the vocabulary in a tile: enough for products at full speed, few enough that tiles are small."""


def chosen_logprobs(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *, piece_tokens: int = 1024
) -> torch.Tensor:
    """Returns log softmax(hidden W^T) at the targets [N], fp32 whatever the inputs are.

    Args:
        hidden: [N, D], the state that predicts each target.
        weight: [V, D] of the output layer, which has no bias.
        targets: [N] int64 in [0, V).
        piece_tokens: tokens of a tile; logits of these and of `TILE_ENTRIES` entries exist at once.

    Example:
        >>> hidden, weight = torch.eye(2), torch.eye(2)
        >>> chosen_logprobs(hidden, weight, torch.tensor([0, 0]))
        tensor([-0.3133, -1.3133])
    """
    if torch.is_autocast_enabled(hidden.device.type):  # the function below must see the same types twice
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        return _ChosenLogprobs.apply(hidden, weight, targets, piece_tokens)


class _ChosenLogprobs(torch.autograd.Function):
    """The gradient of log p_t at logits z is onehot_t - p."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, piece_tokens: int
    ) -> torch.Tensor:
        number = len(targets)
        chosen = hidden.new_zeros(number, dtype=torch.float32)
        normalisers = hidden.new_empty(number, dtype=torch.float32)
        for piece in _slices(number, piece_tokens):
            parts = []  # log sum exp of each tile
            for tile in _slices(len(weight), TILE_ENTRIES):
                logits = _logits(hidden[piece], weight[tile])
                places, inside = _places(targets[piece], tile)
                here = logits.gather(1, places[:, None])[:, 0]
                chosen[piece] = torch.where(inside, here, chosen[piece])
                parts.append(logits.logsumexp(1))
            normalisers[piece] = torch.stack(parts).logsumexp(0)
        ctx.save_for_backward(hidden, weight, targets, normalisers)
        ctx.piece_tokens = piece_tokens
        return chosen - normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, normalisers = ctx.saved_tensors
        [gradient] = gradients
        # Sums are fp32: sixteen bf16 additions would lose what small gradients carry.
        for_hidden = torch.zeros_like(hidden, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        for_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for tile in _slices(len(weight), TILE_ENTRIES):  # outside, so that its gradient is written once
            columns = weight[tile]
            total = torch.zeros_like(columns, dtype=torch.float32)
            for piece in _slices(len(targets), ctx.piece_tokens):
                share = gradient[piece]
                logits = _logits(hidden[piece], columns)
                slope = logits.sub_(normalisers[piece, None]).exp_().mul_(-share[:, None])
                places, inside = _places(targets[piece], tile)
                slope.scatter_add_(1, places[:, None], torch.where(inside, share, 0)[:, None])
                slope = slope.to(weight.dtype)
                if for_hidden is not None:
                    _add_product(for_hidden[piece], slope, columns)
                if for_weight is not None:
                    _add_product(total, slope.t(), hidden[piece])
            if for_weight is not None:
                for_weight[tile] = total
        for_hidden = None if for_hidden is None else for_hidden.to(hidden.dtype)
        return for_hidden, for_weight, None, None


def _slices(number: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, number)) for start in range(0, number, size)]


def _places(targets: torch.Tensor, tile: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each target's place in a tile, and whether it lies there; if not, the place is any."""
    places = targets - tile.start
    size = tile.stop - tile.start
    return places.clamp(0, size - 1), (places >= 0) & (places < size)


def _logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns fp32 logits; the engines do not round them to bf16 either, where 20 is off by up to 0.06."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return torch.mm(hidden.float(), weight.float().t())


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
