"""Causal attention over rows packed one after another: no padding outside attention, none across rows.

A packed model sees a flat list of N tokens of many rows, with positions that restart at each row. Only
attention has to know where rows end. On a GPU in half precision that is torch's variable-length kernel;
elsewhere rows of similar lengths attend in groups, padded to the longest of their group. No kernel used
holds a row's T x T scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AttentionInterface, AttentionMaskInterface

from pipeline.ragged import padding, similar_runs

ATTENTION_NAME = "vdapo_packed"
_SLACK = 1.25  # a group's longest row is at most this times its shortest, plus _EXTRA
_EXTRA = 16


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend together, as a rectangle of R x T places; their tokens are `start:stop` of all.

    `places` [stop - start] are their places in the rectangle; None if they fill it. What fills the other
    places lies after its row, so no kept output depends on it.
    """

    start: int
    stop: int
    rows: int
    longest: int
    places: torch.Tensor | None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, repeat_heads: bool
    ) -> torch.Tensor:
        """Returns [stop - start, heads, head_dim] for flat [N, heads, head_dim]."""
        heads = query.shape[1]
        query, key, value = (self._padded(tensor) for tensor in (query, key, value))
        if repeat_heads:
            key, value = (tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (key, value))
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=key.shape[1] < heads
        )
        flat = mixed.transpose(1, 2).reshape(self.rows * self.longest, heads, query.shape[-1])
        return flat if self.places is None else take_rows(flat, self.places)

    def _padded(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns [R, heads, T, head_dim]."""
        mine = flat[self.start : self.stop]
        if self.places is not None:
            empty = mine.new_zeros(self.rows * self.longest, *flat.shape[1:])
            mine = empty.index_copy(0, self.places, mine)
        return mine.view(self.rows, self.longest, *flat.shape[1:]).transpose(1, 2)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.number = len(flat)
        return flat.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient = gradients[0]
        whole = gradient.new_zeros(ctx.number, *gradient.shape[1:])
        return whole.index_copy_(0, ctx.saved_tensors[0], gradient), None


def take_rows(flat: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Returns flat[places], each place at most once, so its gradient is copied and not added."""
    return _Take.apply(flat, places)


class Packing:
    """Where the rows of a flat list of tokens begin and end.

    Attributes:
        lengths: tokens of each row, >= 1; groups are fewest when they are sorted.
        positions: [N] place of each token in its row.

    Args:
        repeat_heads: copy keys and values for every query head; None does so off the CPU. A GPU's
            memory-efficient kernel, its only one for fp32, needs that: torch would take whole T x T matrices.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        repeat_heads: bool | None = None,
    ) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError(f"lengths = {list(lengths)[:8]}; rows have at least one token, and there is one")
        self.lengths = tuple(lengths)
        self.positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        self._ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        self._groups: list[_Group] | None = None  # made when first needed: a GPU kernel needs none
        self._repeat_heads = torch.device(device).type != "cpu" if repeat_heads is None else repeat_heads

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Returns [1, N, heads, head_dim] for [1, heads, N, head_dim]; keys may have fewer heads."""
        query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if torch.is_autocast_enabled(query.device.type):  # Qwen3's norms of queries and keys give fp32 there
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
            from torch.nn.attention.varlen import varlen_attn

            mixed = varlen_attn(
                query.contiguous(),
                key.contiguous(),
                value.contiguous(),
                self._ends,
                self._ends,
                max(self.lengths),
                max(self.lengths),
                scale=scaling,
                window_size=(-1, 0),
                enable_gqa=True,
            )
            assert isinstance(mixed, torch.Tensor)
            return mixed[None]
        if self._groups is None:
            self._groups = _groups(self.lengths, query.device)
        parts = [group.attend(query, key, value, scaling, self._repeat_heads) for group in self._groups]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[None]


def _groups(lengths: Sequence[int], device: torch.device) -> list[_Group]:
    """Returns neighbours of similar lengths, in the order given."""
    groups, start = [], 0
    for run in similar_runs(lengths, _SLACK, _EXTRA):
        members = lengths[run]
        padded = padding(np.array(members))
        places = None if padded is None else torch.from_numpy(padded[1]).to(device)
        stop = start + sum(members)
        groups.append(_Group(start, stop, len(members), max(members), places))
        start = stop
    return groups


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it; the packing says what attends to what, so no mask is read.

    Source: the interface of `transformers.AttentionInterface`.
    """
    if packing is None:
        raise ValueError("packed attention needs the rows' lengths: call the model through run_packed")
    return packing.attend(query, key, value, scaling), None


def run_packed(model: Any, token_ids: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Returns the hidden states [N, width] of rows packed into token_ids [N] int64.

    The model is a decoder without head (`base_model`), set to `ATTENTION_NAME`.
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
