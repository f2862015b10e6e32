"""Rollouts and advantages to rows of tokens, rows to packed batches: the only place that knows packing.

Rows lie one after another in a flat list of tokens; nothing is padded. `pipeline.training.attention`
keeps a row's tokens from seeing another's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from pipeline.training import TrainingRow
from pipeline.types import Rollout

if TYPE_CHECKING:
    import torch


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

    def unpacked(self, flat: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (row index, the row's part) of an array [N, ...]."""
        for index, start, length in zip(self.row_indices, self.starts, self.lengths, strict=True):
            yield index, flat[start : start + length]


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


def policy_rows(
    rollouts: Sequence[Rollout],
    step_advantages: Sequence[np.ndarray],
    token_weights: Sequence[float] | None = None,
    columns: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> list[TrainingRow]:
    """Returns the rows of one whole policy update: every trainable token carries its step's advantage.

    Columns: `weight`, `advantages`, `engine_logprobs` (the behaviour policy's, as sampled), `old_logprobs`
    (the same unless given), and those given.

    Args:
        rollouts: of the whole update, all ranks and micro-batches.
        step_advantages: [T_i] of each rollout, entry j for `rollout.steps[j]`.
        token_weights: of each trainable token of each rollout; None is 1 / trainable tokens of all.
        columns: name -> [len(response)] numbers of each rollout.

    Raises:
        ValueError: lengths differ, or a rollout's steps do not tile its trainable tokens.
    """
    if len(rollouts) != len(step_advantages):
        raise ValueError(f"{len(rollouts)} rollouts but {len(step_advantages)} arrays of advantages")
    if token_weights is None:
        token_weights = [1 / max(1, sum(r.num_trainable_tokens for r in rollouts))] * len(rollouts)
    rows = []
    for i, rollout in enumerate(rollouts):
        logprobs = _on_response(rollout, rollout.logprobs)
        made = {
            "weight": _on_response(rollout, np.asarray(rollout.loss_mask, np.float64) * token_weights[i]),
            "advantages": _on_response(rollout, on_tokens(rollout, step_advantages[i])),
            "old_logprobs": logprobs,
            "engine_logprobs": logprobs,
        }
        made |= {name: _on_response(rollout, arrays[i]) for name, arrays in (columns or {}).items()}
        rows.append(TrainingRow(token_ids=_token_ids(rollout), columns=made))
    return rows


def on_tokens(rollout: Rollout, step_numbers: np.ndarray) -> np.ndarray:
    """Returns [len(response)]: each step's number on all its tokens, 0 on the environment's.

    Raises:
        ValueError: there is not one number per step, or the steps do not tile the trainable tokens.
    """
    if len(step_numbers) != len(rollout.steps):
        raise ValueError(
            f"rollout {rollout.rollout_id}: {len(step_numbers)} numbers for {len(rollout.steps)} steps"
        )
    numbers = np.zeros(len(rollout.response_token_ids))
    covered = np.zeros(len(rollout.response_token_ids), dtype=np.int64)
    for step, number in zip(rollout.steps, step_numbers, strict=True):
        numbers[step.token_start : step.token_end] = number
        covered[step.token_start : step.token_end] += 1
    wrong = np.flatnonzero(covered != np.asarray(rollout.loss_mask))
    if len(wrong):
        raise ValueError(
            f"rollout {rollout.rollout_id}: steps must tile the trainable tokens; response "
            f"token {wrong[0]} has "
            f"loss_mask {rollout.loss_mask[wrong[0]]} and lies in {covered[wrong[0]]} steps"
        )
    return numbers


def sft_rows(
    token_ids: Sequence[Sequence[int]],
    loss_masks: Sequence[Sequence[float]],
    *,
    row_weights: Sequence[float] | None = None,
) -> list[TrainingRow]:
    """Returns the rows of one whole supervised update, `weight` = mask * row weight / their sum.

    Args:
        token_ids: of each row, prompt and response.
        loss_masks: same lengths, 1 where the token is learnt; weights in between are allowed.
        row_weights: of each row's tokens; None is 1.

    Raises:
        ValueError: lengths differ, or nothing is learnt.
    """
    weights = [1.0] * len(token_ids) if row_weights is None else list(row_weights)
    masks = [w * np.asarray(m, np.float64) for w, m in zip(weights, loss_masks, strict=True)]
    total = float(sum(mask.sum() for mask in masks))
    if total <= 0:
        raise ValueError(f"{len(masks)} rows with a total weight of {total}; nothing would be learnt")
    return [
        TrainingRow(np.asarray(ids, np.int32), {"weight": (mask / total).astype(np.float32)})
        for ids, mask in zip(token_ids, masks, strict=True)
    ]


def _token_ids(rollout: Rollout) -> np.ndarray:
    return np.array((*rollout.prompt_token_ids, *rollout.response_token_ids), dtype=np.int32)


def _on_response(rollout: Rollout, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns [prompt + response] float32: 0 on the prompt, the numbers on the response."""
    prompt = len(rollout.prompt_token_ids)
    return np.concatenate([np.zeros(prompt), np.asarray(numbers, np.float64)]).astype(np.float32)


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
    import torch

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
