"""Rows of unequal lengths, one after another: as rectangles and back, and which models can run them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION_NAME = "vdapo_packed"


def similar_runs(lengths: Sequence[int] | np.ndarray, slack: float, extra: int) -> list[slice]:
    """Returns runs of neighbours, the longest at most `slack` times the shortest plus `extra`.

    Example:
        >>> similar_runs([4, 5, 9, 8], 1.25, 0)
        [slice(0, 2, None), slice(2, 4, None)]
    """
    runs, first, shortest, longest = [], 0, lengths[0], lengths[0]
    for place, length in enumerate(lengths):
        shortest, longest = min(shortest, length), max(longest, length)
        if longest > shortest * slack + extra:
            runs.append(slice(first, place))
            first, shortest, longest = place, length, length
    return [*runs, slice(first, len(lengths))]


def padding(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns where tokens of R rows, of `lengths` [R], go when padded to the longest; None if all are equal.

    First [R * T]: the token that fills each place; padding repeats a row's last token. Second [N]: the place
    of each token.

    Example:
        >>> padding(np.array([2, 1]))
        (array([0, 1, 2, 2]), array([0, 1, 2]))
    """
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        return None
    place, sizes = np.arange(longest)[None], lengths[:, None]
    firsts = (np.cumsum(lengths) - lengths)[:, None]
    tokens = (firsts + np.minimum(place, sizes - 1)).reshape(-1)
    return tokens, np.flatnonzero((place < sizes).reshape(-1))


def check_full_attention(config: Any) -> None:
    """Raises ValueError for a model whose layers do not look at everything before a token."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"the model has layers of {sorted(kinds)}; allowed: full_attention only")


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    packing: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it; the packing says what attends to what, so no mask is read.

    Source: the interface of `transformers.AttentionInterface`.
    """
    if packing is None:
        raise ValueError("packed attention needs the rows' places: call the model through run_packed")
    return packing.attend(module.layer_idx, query, key, value, scaling), None


def run_packed(model: Any, token_ids: torch.Tensor, packing: Any) -> torch.Tensor:
    """Returns the hidden states [N, width] of rows packed into token_ids [N] int64.

    The model is a decoder without head (`base_model`), set to `ATTENTION_NAME`; the packing is a `Packing`,
    or a `SlotPlan` where keys and values are kept.
    """
    return model(
        input_ids=token_ids[None],
        position_ids=packing.positions[None],
        attention_mask=None,
        use_cache=False,
        packing=packing,
    ).last_hidden_state[0]


AttentionInterface.register(ATTENTION_NAME, packed_attention)
AttentionMaskInterface.register(ATTENTION_NAME, lambda *args, **kwargs: None)
