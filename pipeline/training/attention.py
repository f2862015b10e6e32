"""Causal attention over rows packed one after another: no padding outside attention, none across rows.

A packed model sees a flat list of N tokens of many rows, with positions that restart at each row. Only
attention has to know where rows end. On a GPU in half precision that is torch's variable-length kernel;
elsewhere rows of similar lengths attend in groups, padded to the longest of their group. No kernel used
holds a row's T x T scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from pipeline.ragged import padding, similar_runs

_SLACK = 1.25  # a group's longest row is at most this times its shortest, plus _EXTRA
_EXTRA = 16


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend together, as a rectangle of R x T places; `padding` says what fills them.

    What fills the place of no token lies after its row, so no kept output depends on it.
    """

    tokens: slice  # of the flat list
    rows: int
    longest: int
    pad: torch.Tensor | None  # [R * T] token of the group for each place; None if nothing is padded
    unpad: torch.Tensor | None  # place of each token

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, repeat_heads: bool
    ) -> torch.Tensor:
        """Returns [its tokens, heads, head_dim] for flat [N, heads, head_dim]."""
        heads = query.shape[1]
        query, key, value = (self._padded(tensor) for tensor in (query, key, value))
        if repeat_heads:
            key, value = (tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (key, value))
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=key.shape[1] < heads
        )
        flat = mixed.transpose(1, 2).reshape(self.rows * self.longest, heads, query.shape[-1])
        return flat if self.unpad is None else flat.index_select(0, self.unpad)

    def _padded(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns [R, heads, T, head_dim]."""
        mine = flat[self.tokens] if self.pad is None else flat[self.tokens].index_select(0, self.pad)
        return mine.view(self.rows, self.longest, *flat.shape[1:]).transpose(1, 2)


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
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Returns [1, N, heads, head_dim] for [1, heads, N, head_dim]; keys may have fewer heads."""
        query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if torch.is_autocast_enabled(query.device.type):  # Qwen3's norms of queries and keys give fp32 there
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
            from torch.nn.attention.varlen import varlen_attn

            fewer_keys: dict[str, Any] = {"enable_gqa": True} if _asks_for_fewer_keys(varlen_attn) else {}
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
                **fewer_keys,
            )
            assert isinstance(mixed, torch.Tensor)
            return mixed[None]
        if self._groups is None:
            self._groups = _groups(self.lengths, query.device)
        parts = [group.attend(query, key, value, scaling, self._repeat_heads) for group in self._groups]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[None]


@cache
def _asks_for_fewer_keys(kernel: Callable[..., object]) -> bool:
    """Returns whether it wants to be told of fewer heads of keys; torch 2.11's takes them as they are."""
    return "enable_gqa" in signature(kernel).parameters


def _groups(lengths: Sequence[int], device: torch.device) -> list[_Group]:
    """Returns neighbours of similar lengths, in the order given."""
    groups, start = [], 0
    for run in similar_runs(lengths, _SLACK, _EXTRA):
        members = lengths[run]
        stop = start + sum(members)
        padded = padding(np.array(members))
        pad, unpad = (None, None) if padded is None else (torch.from_numpy(p).to(device) for p in padded)
        groups.append(_Group(slice(start, stop), len(members), max(members), pad, unpad))
        start = stop
    return groups
