"""Choosing tokens from logits: one uniform number per token, so a request's result depends on it alone."""

from __future__ import annotations

import torch


def choose_tokens(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    temperatures: torch.Tensor,
    top_p: torch.Tensor | None = None,
    top_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the chosen tokens [N] and their log-probabilities [N], float32.

    A sampled token is the inverse of the cumulative distribution of softmax(logits / temperature) at its
    uniform number; its log-probability is the one it was sampled with, after top_p and top_k if given.
    A greedy token (temperature 0) is the argmax; its log-probability is that under temperature 1.

    Args:
        logits: [N, V].
        uniforms: [N] float64 in [0, 1).
        temperatures: [N] >= 0.
        top_p: [N] in (0, 1], or None: every token is kept.
        top_k: [N] >= 1, or -1 to keep every token; None: every token is kept.
    """
    greedy = temperatures == 0
    logits = logits.float()
    best = logits.argmax(-1) if bool(greedy.any()) else None
    if bool((temperatures != 1).any()):
        logits = logits / torch.where(greedy, 1.0, temperatures)[:, None]
    logprobs = logits.log_softmax(-1)
    if top_p is not None or top_k is not None:
        kept = _survivors(logprobs, top_p, top_k) | greedy[:, None]
        logprobs = logprobs.masked_fill(~kept, float("-inf")).log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    # Below the total by more than rounding, so that no token of probability 0 can be the last choice.
    threshold = uniforms.clamp(max=1 - 1e-12)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    if best is not None:
        tokens = torch.where(greedy, best, tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _survivors(
    logprobs: torch.Tensor, top_p: torch.Tensor | None, top_k: torch.Tensor | None
) -> torch.Tensor:
    """Returns [N, V], True for the tokens that top_k, then top_p over what top_k left, keep."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logprobs.shape[-1], device=logprobs.device)
    kept = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        kept &= (rank < top_k[:, None]) | (top_k[:, None] < 0)
    if top_p is not None:
        probabilities = torch.where(kept, ordered.exp(), 0.0)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        before = probabilities.cumsum(-1) - probabilities
        kept &= (before < top_p[:, None]) | (rank == 0) | (top_p[:, None] >= 1)
    return torch.zeros_like(kept).scatter(1, order, kept)
