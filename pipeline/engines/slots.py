"""Key-value caches in slots, and attention over them: what lets rows of any length share one forward pass.

A forward pass takes a flat list of N tokens, [1, N], of many rows: one token of a row that is being decoded,
a chunk of a row that is being prefilled. Only attention pads: it writes the new keys and values to each row's
slot, then works group by group, rows of similar lengths padded to the longest of their group.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.ragged import padding, similar_runs

_ROUND = 32  # lengths are rounded up to this, so that shapes repeat and memory is reused
_CHUNK_SLACK = 1.3  # a prefill group's longest chunk is at most this times its shortest, plus _CHUNK_EXTRA
_CHUNK_EXTRA = 4
_ALIGNMENT = 64  # bytes; where a matrix begins must not decide how its products are rounded
_GATHER_COST = 1.8  # reading gathered rows, copy included, against reading them in place


class SlotCache:
    """Keys and values of rows on the CPU, each in its slot; grows to `max_length` tokens as needed.

    The shape is layers, slots, key and value heads, head_dim.
    """

    def __init__(self, shape: tuple[int, int, int, int], max_length: int, dtype: torch.dtype) -> None:
        self._max_length = max_length
        self._shape = shape
        self._dtype = dtype
        self._data = self._make(0)

    def _make(self, length: int) -> torch.Tensor:
        """Returns zeros, not garbage: masked positions are multiplied by 0, and 0 times NaN is NaN."""
        shape = (2, *self._shape[:3], length, self._shape[3])
        # numpy's zeros take memory page by page when it is written, torch's take all of it at once.
        size = math.prod(shape) * self._dtype.itemsize
        raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
        first = -raw.ctypes.data % _ALIGNMENT
        return torch.from_numpy(raw[first : first + size]).view(self._dtype).view(shape)

    def keys_and_values(self, layer: int) -> torch.Tensor:
        """Returns [2, slots, kv_heads, length, head_dim] of one layer."""
        return self._data[:, layer]

    def reserve(self, length: int) -> None:
        """Makes room for rows of `length` tokens."""
        have = self._data.shape[4]
        if length > have:
            grown = self._make(min(_rounded(max(length, 128), 128), _rounded(self._max_length, _ROUND)))
            grown[:, :, :, :, :have] = self._data
            self._data = grown

    def copy_rows(self, sources: np.ndarray, targets: np.ndarray, length: int) -> None:
        """Copies the first `length` tokens of the source slots to the target slots."""
        data = self._data[..., :length, :]
        data[:, :, torch.from_numpy(targets)] = data[:, :, torch.from_numpy(sources)]

    def clear(self) -> None:
        """Drops everything, and the memory."""
        self._data = self._make(0)


def _rounded(length: int, to: int) -> int:
    return -(-length // to) * to


@dataclass
class _Group:
    """R rows that attend together, each padded to T tokens, over L keys of their slots."""

    tokens: slice  # of the flat list, row after row
    slots: torch.Tensor | None  # [R]; None means slots 0 to R - 1, which are read in place
    pad: torch.Tensor | None  # [R * T] token of the group for each padded place; None if nothing is padded
    unpad: torch.Tensor | None  # padded place of each of its tokens; None if nothing is padded
    bias: torch.Tensor  # [R, 1, 1, T, L] 0 where a token sees a key, else -inf

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Returns [its tokens, heads, head_dim] for the flat queries [N, heads, head_dim]."""
        num_heads, head_dim = query.shape[1:]
        num_kv_heads = keys.shape[1]
        repeats = num_heads // num_kv_heads
        rows, _, _, chunk, length = self.bias.shape
        query = query[self.tokens]
        if self.pad is not None:
            query = query.index_select(0, self.pad)
        if self.slots is None:
            keys, values = keys[:rows, :, :length], values[:rows, :, :length]
        else:
            keys = keys[:, :, :length].index_select(0, self.slots)
            values = values[:, :, :length].index_select(0, self.slots)
        packed = query.view(rows, chunk, num_kv_heads, repeats, head_dim).permute(0, 2, 3, 1, 4)
        packed = packed.reshape(rows, num_kv_heads, repeats * chunk, head_dim)
        scores = torch.matmul(packed * scaling, keys.transpose(2, 3))
        scores.view(rows, num_kv_heads, repeats, chunk, length).add_(self.bias)
        mixed = torch.matmul(scores.softmax(-1), values)
        flat = mixed.view(rows, num_heads, chunk, head_dim).transpose(1, 2)
        flat = flat.reshape(rows * chunk, num_heads, head_dim)
        return flat if self.unpad is None else flat.index_select(0, self.unpad)


@dataclass
class SlotPlan:
    """One forward pass: which tokens of which slots, and how they attend."""

    rows: np.ndarray  # [R] slots in the order of the flat list
    slots: torch.Tensor  # [N] of each token
    positions: torch.Tensor  # [N] of each token in its row
    last: torch.Tensor  # [R] place in the flat list of each row's last token
    _groups: list[_Group]
    _cache: SlotCache

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Returns [1, N, heads, head_dim]; writes the new keys and values to their slots first."""
        keys, values = self._cache.keys_and_values(layer)
        keys[self.slots, :, self.positions] = key[0].transpose(0, 1)
        values[self.slots, :, self.positions] = value[0].transpose(0, 1)
        flat = query[0].transpose(0, 1).contiguous()
        parts = [group.attend(flat, keys, values, scaling) for group in self._groups]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[None]


def make_plan(rows: np.ndarray, cached: np.ndarray, known: np.ndarray, cache: SlotCache) -> SlotPlan:
    """Returns the plan of a forward pass over tokens `cached` to `known` [R] of the slots `rows` [R].

    Slots ascend. `cached` of a row's tokens, fewer than `known`, have keys and values in its slot.
    """
    cache.reserve(int(known.max()))
    chunk = known - cached
    parts: list[tuple[np.ndarray, int]] = []  # places in rows; number of slots read in place, 0: gathered
    decode, prefill = np.flatnonzero(chunk == 1), np.flatnonzero(chunk > 1)
    if len(decode):
        parts.extend(_decode_parts(rows, known, decode))
    if len(prefill):
        prefill = prefill[np.lexsort((rows[prefill], known[prefill], chunk[prefill]))]
        parts += [(prefill[run], 0) for run in similar_runs(chunk[prefill], _CHUNK_SLACK, _CHUNK_EXTRA)]
    groups: list[_Group] = []
    for places, in_place in parts:
        start = groups[-1].tokens.stop if groups else 0
        groups.append(_make_group(start, rows[places], cached[places], chunk[places], in_place))
    order = np.concatenate([places for places, _ in parts])
    lengths = chunk[order]
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    slots = torch.from_numpy(np.repeat(rows[order], lengths))
    positions = torch.from_numpy(np.repeat(cached[order], lengths) + within)
    return SlotPlan(rows[order], slots, positions, torch.from_numpy(ends - 1), groups, cache)


def _decode_parts(rows: np.ndarray, known: np.ndarray, decode: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Splits decoding rows into the cheaper of the first slots, read in place, and gathered groups."""
    first_slots = int(rows[decode[-1]]) + 1
    best, best_cost = [(decode, first_slots)], first_slots * float(known[decode].max())
    ordered = decode[np.lexsort((rows[decode], known[decode]))]
    for num_groups in (1, 2, 4):
        pieces = [piece for piece in np.array_split(ordered, num_groups) if len(piece)]
        overhead = 500.0 * (num_groups - 1)
        cost = _GATHER_COST * sum(len(piece) * float(known[piece[-1]]) for piece in pieces) + overhead
        if cost < best_cost:
            best, best_cost = [(piece, 0) for piece in pieces], cost
    return best


def _make_group(
    start: int, slots: np.ndarray, cached: np.ndarray, chunk: np.ndarray, in_place: int
) -> _Group:
    """Returns the group of a run of rows; `in_place` is the number of slots to read in place, or 0."""
    longest = int(chunk.max())
    if in_place:
        # A slot that is not in the group computes the first row's query over its key 0, and is left out.
        seen, pad = np.zeros(in_place, dtype=np.int64), np.zeros(in_place, dtype=np.int64)
        seen[slots], pad[slots] = cached, np.arange(len(slots))
        seen = seen[:, None]
        padded = (pad, slots) if len(slots) < in_place else None
    else:
        seen = cached[:, None] + np.minimum(np.arange(longest)[None], chunk[:, None] - 1)
        padded = padding(chunk)
    pad_places, unpad_places = (None, None) if padded is None else map(torch.from_numpy, padded)
    length = _rounded(int((cached + chunk).max()), _ROUND)
    sees = torch.arange(length)[None, None] <= torch.from_numpy(seen)[:, :, None]
    bias = torch.zeros(sees.shape).masked_fill_(~sees, float("-inf"))
    tokens = slice(start, start + int(chunk.sum()))
    gathered = None if in_place else torch.from_numpy(slots)
    return _Group(tokens, gathered, pad_places, unpad_places, bias[:, None, None])


class SlotOwners:
    """Slots that are free, taken, or idle: served out, but bound to a key.

    Args:
        cached: [slots] tokens with keys and values in each; set to 0 when a slot becomes free.
    """

    def __init__(self, cached: np.ndarray) -> None:
        self._cached = cached
        self._at_work: dict[int, str | None] = {}  # slot -> the key it is bound to
        self._idle: dict[str | None, int] = {}  # key -> its slot, least recently used first; None has none
        self._free = list(range(len(cached)))  # a heap: low slots first keep the rows at work together

    @property
    def available(self) -> int:
        """Slots that can be taken."""
        return len(self._free) + len(self._idle)

    def take(self, keys: Sequence[str | None]) -> list[int]:
        """Takes a slot for each key and returns them.

        Keys with an idle slot get it; then nobody can evict them. The others get a free slot, else the one
        that has been idle longest. A key that is at work elsewhere binds no second slot.
        """
        own = [self._idle.pop(key, None) for key in keys]
        self._at_work |= {slot: key for slot, key in zip(own, keys, strict=True) if slot is not None}
        return [self._take_any(key) if slot is None else slot for key, slot in zip(keys, own, strict=True)]

    def _take_any(self, key: str | None) -> int:
        if not self._free:
            self.release(next(iter(self._idle)))
        slot = heapq.heappop(self._free)
        if key is not None and key not in self._at_work.values():
            self._at_work[slot] = key
        return slot

    def leave(self, slot: int) -> None:
        """Ends the work of a slot, which becomes idle if it is bound, else free."""
        key = self._at_work.pop(slot, None)
        if key is None:
            self._set_free(slot)
        else:
            self._idle[key] = slot

    def release(self, key: str | None) -> None:
        """Unbinds a key; its slot is free at once, or when it is left."""
        self._at_work = {slot: bound for slot, bound in self._at_work.items() if bound != key}
        if (slot := self._idle.pop(key, None)) is not None:
            self._set_free(slot)

    def _set_free(self, slot: int) -> None:
        self._cached[slot] = 0
        heapq.heappush(self._free, slot)
