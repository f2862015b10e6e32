"""Rows to packed batches: they lie one after another in a flat list of tokens; nothing is padded.

`pipeline.training.attention` keeps a row's tokens from seeing another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import accumulate

import numpy as np
import torch

from pipeline.training.protocol import TrainingRow


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass, one after another."""

    token_ids: torch.Tensor  # [N] int64, of all rows
    lengths: tuple[int, ...]  # of each sequence; a row is one, or several that lie side by side
    columns: dict[str, torch.Tensor]  # name -> [N] float32
    row_indices: tuple[int, ...]  # place of each row among those given to `micro_batches`
    row_lengths: tuple[int, ...]  # of each row, all of its sequences

    @property
    def starts(self) -> list[int]:
        """Place of each sequence's first token in the flat list."""
        return [0, *accumulate(self.lengths)][:-1]

    def to(self, device: torch.device | str) -> Batch:
        """Returns the batch on a device."""
        columns = {name: column.to(device) for name, column in self.columns.items()}
        return replace(self, token_ids=self.token_ids.to(device), columns=columns)

    def unpacked(self, outputs: Mapping[str, torch.Tensor]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yields (row index, the row's part of each output [N, ...], in host memory)."""
        flat = {name: tensor.detach().cpu().numpy() for name, tensor in outputs.items()}
        ends = accumulate(self.row_lengths)
        for index, end, length in zip(self.row_indices, ends, self.row_lengths, strict=True):
            yield index, {name: array[end - length : end].copy() for name, array in flat.items()}


Forward = Callable[[Batch], Mapping[str, torch.Tensor]]
Loss = Callable[[Mapping[str, torch.Tensor], Batch], tuple[torch.Tensor, dict[str, torch.Tensor]]]
"""Outputs of the network by name and the batch -> the sum that is minimised, and sums to report."""


def bins_of(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Returns the rows of each micro-batch: first-fit decreasing into bins of `capacity` tokens.

    A row longer than the capacity is a bin of its own. Equal lengths keep their order, so the same lengths
    give the same bins. Needs at most 11/9 of the fewest possible bins plus one.

    Source: D. S. Johnson, "Near-optimal bin packing algorithms" (1973).

    Example:
        >>> bins_of([3, 9, 4, 2], capacity=9)
        [[1], [2, 0, 3]]
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for place, free in enumerate(room):
            if lengths[i] <= free:
                bins[place].append(i)
                room[place] -= lengths[i]
                break
        else:
            bins.append([i])
            room.append(capacity - lengths[i])
    return bins


def dealt(lengths: Sequence[int], capacity: int, num_ranks: int) -> list[list[list[int]]]:
    """Returns each rank's micro-batches as places of rows, heaviest first.

    Ranks wait for each other, so the heaviest one's tokens are everybody's time. First-fit fills bins to the
    brim and leaves little for the last, so several ranks share rows out: equally many bins each, about as
    heavy. Only where rows are fewer than these bins, some ranks get fewer.
    """
    bins = bins_of(lengths, capacity)
    if num_ranks > 1:
        each = -(-len(bins) // num_ranks)
        while (even := _even_bins(lengths, capacity, each * num_ranks)) is None:
            each += 1
        bins = even
    shares: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for cost, members in sorted(((sum(lengths[i] for i in b), b) for b in bins), key=lambda c: -c[0]):
        lightest = min(range(num_ranks), key=lambda r: (len(shares[r]), loads[r]))
        shares[lightest].append(members)
        loads[lightest] += cost
    return shares


def _even_bins(lengths: Sequence[int], capacity: int, number: int) -> list[list[int]] | None:
    """Returns at most so many bins, each row, heaviest first, in the lightest; None if one has no room there.

    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies" (1969).
    """
    bins: list[list[int]] = [[] for _ in range(number)]
    by_load = [(0, place) for place in range(number)]  # a heap
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        load, place = by_load[0]
        if bins[place] and load + lengths[i] > capacity:
            return None
        bins[place].append(i)
        heapreplace(by_load, (load + lengths[i], place))
    return [members for members in bins if members]


def micro_batches(rows: Sequence[TrainingRow], max_tokens: int) -> Iterator[Batch]:
    """Yields all rows in packed batches of at most `max_tokens` tokens; a longer row is one of its own."""
    return (packed(rows, chosen) for chosen in bins_of([len(row.token_ids) for row in rows], max_tokens))


def packed(rows: Sequence[TrainingRow], chosen: Sequence[int]) -> Batch:
    """Returns one batch of some of the rows; ValueError if their columns do not fit."""
    names = rows[0].columns.keys()
    for i in chosen:
        if rows[i].columns.keys() != names:
            raise ValueError(f"row {i} has columns {sorted(rows[i].columns)}, row 0 {sorted(names)}")
        for name, column in rows[i].columns.items():
            if len(column) != (tokens := len(rows[i].token_ids)):
                raise ValueError(f"row {i}: column {name} has {len(column)} entries, {tokens} tokens")
    columns = {name: np.concatenate([rows[i].columns[name] for i in chosen]) for name in names}
    return Batch(
        token_ids=torch.from_numpy(np.concatenate([rows[i].token_ids for i in chosen]).astype(np.int64)),
        lengths=tuple(n for i in chosen for n in rows[i].lengths or (len(rows[i].token_ids),)),
        columns={n: torch.from_numpy(column.astype(np.float32, copy=False)) for n, column in columns.items()},
        row_indices=tuple(chosen),
        row_lengths=tuple(len(rows[i].token_ids) for i in chosen),
    )


def summed(
    batches: Iterable[Batch], forward: Forward, loss: Loss, backward: Callable[[torch.Tensor], object]
) -> dict[str, float]:
    """Returns a loss and its metrics, summed over batches; `backward` takes the loss of each."""
    sums = {"loss": 0.0}
    for batch in batches:
        total, metrics = loss(forward(batch), batch)
        backward(total)
        for name, number in ({"loss": total} | metrics).items():
            sums[name] = sums.get(name, 0.0) + float(number.detach())
    return sums
