"""Rows to packed batches: they lie one after another in a flat list of tokens; nothing is padded.

`pipeline.training.attention` keeps a row's tokens from seeing another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from pipeline.training.protocol import TrainingRow


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass, one after another.

    Attributes:
        token_ids: [N] int64, the tokens of all rows.
        lengths: tokens of each row.
        columns: name -> [N] float32.
        row_indices: place of each row among those given to `micro_batches`.
    """

    token_ids: torch.Tensor
    lengths: tuple[int, ...]
    columns: dict[str, torch.Tensor]
    row_indices: tuple[int, ...]

    @property
    def starts(self) -> list[int]:
        """Place of each row's first token in the flat list."""
        return [0, *accumulate(self.lengths)][:-1]

    def to(self, device: torch.device | str) -> Batch:
        """Returns the batch on a device."""
        columns = {name: column.to(device) for name, column in self.columns.items()}
        return replace(self, token_ids=self.token_ids.to(device), columns=columns)

    def unpacked(self, outputs: Mapping[str, torch.Tensor]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yields (row index, the row's part of each output [N, ...], in host memory)."""
        flat = {name: tensor.cpu().numpy() for name, tensor in outputs.items()}
        for index, start, length in zip(self.row_indices, self.starts, self.lengths, strict=True):
            yield index, {name: array[start : start + length].copy() for name, array in flat.items()}


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


def micro_batches(rows: Sequence[TrainingRow], max_tokens: int) -> Iterator[Batch]:
    """Yields all rows in packed batches of at most `max_tokens` tokens; a longer row is one of its own.

    Raises:
        ValueError: a row is empty, a column's length differs from its row's, or rows have different columns.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens = {max_tokens}; must be at least 1")
    _check_rows(rows)
    for chosen in bins_of([len(row.token_ids) for row in rows], max_tokens):
        yield _packed([rows[i] for i in chosen], tuple(chosen))


def _check_rows(rows: Sequence[TrainingRow]) -> None:
    for i, row in enumerate(rows):
        if len(row.token_ids) == 0:
            raise ValueError(f"row {i} has no tokens")
        if row.columns.keys() != rows[0].columns.keys():
            raise ValueError(f"row {i} has columns {sorted(row.columns)}, row 0 {sorted(rows[0].columns)}")
        for name, column in row.columns.items():
            if len(column) != len(row.token_ids):
                raise ValueError(
                    f"row {i}: column {name} has {len(column)} entries, {len(row.token_ids)} tokens"
                )


def _packed(rows: Sequence[TrainingRow], row_indices: tuple[int, ...]) -> Batch:
    return Batch(
        token_ids=torch.from_numpy(np.concatenate([row.token_ids for row in rows]).astype(np.int64)),
        lengths=tuple(len(row.token_ids) for row in rows),
        columns={
            name: torch.from_numpy(
                np.concatenate([row.columns[name] for row in rows]).astype(np.float32, copy=False)
            )
            for name in rows[0].columns
        },
        row_indices=row_indices,
    )
