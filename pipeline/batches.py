"""Rollouts and advantages to rows of tokens, rows to padded batches: the only place that knows padding.

Rows are padded on the right. Attention is causal, so padding never reaches an earlier token and no
attention mask is needed; padded positions have 0 in every column, `weight` included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.credit.options import Aggregation
from pipeline.training import TrainingRow
from pipeline.types import Rollout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass, padded on the right to the longest.

    Attributes:
        token_ids: [B, T] int64.
        lengths: [B] int64, tokens of each row without padding.
        columns: name -> [B, T] float32, 0 in the padding.
        row_indices: [B] place of each row among those given to `micro_batches`.
    """

    token_ids: torch.Tensor
    lengths: torch.Tensor
    columns: dict[str, torch.Tensor]
    row_indices: tuple[int, ...]


def micro_batches(rows: Sequence[TrainingRow], max_tokens: int, pad_token_id: int) -> Iterator[Batch]:
    """Yields all rows, longest first, in batches of at most `max_tokens` tokens, padding included.

    A row longer than `max_tokens` is a batch of its own. Equal lengths keep their order, so the same rows
    give the same batches.

    Raises:
        ValueError: a row is empty, a column's length differs from its row's, or rows have different columns.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens = {max_tokens}; must be at least 1")
    _check_rows(rows)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i].token_ids))
    start = 0
    while start < len(order):
        longest = len(rows[order[start]].token_ids)
        stop = start + max(1, max_tokens // longest)
        chosen = order[start:stop]
        yield _padded([rows[i] for i in chosen], tuple(chosen), pad_token_id)
        start = stop


def policy_rows(
    rollouts: Sequence[Rollout],
    step_advantages: Sequence[np.ndarray],
    *,
    aggregation: Aggregation = "token",
) -> list[TrainingRow]:
    """Returns the rows of one whole policy update: every trainable token carries its step's advantage.

    Columns: `weight`, `advantages`, `engine_logprobs` (the behaviour policy's, as sampled) and
    `old_logprobs`, at first the same; replace the latter by the trainer's own forward pass with
    `with_column`, and add `ref_logprobs` so too.

    Args:
        rollouts: of the whole update, all ranks and micro-batches.
        step_advantages: [T_i] of each rollout, entry j for `rollout.steps[j]`.
        aggregation: "token": weight = 1/(trainable tokens of the update); "rollout": 1/(trainable tokens of
            the rollout)/(number of rollouts). Either way the weights sum to 1.

    Raises:
        ValueError: lengths differ, or a rollout's steps do not tile its trainable tokens.
    """
    if len(rollouts) != len(step_advantages):
        raise ValueError(f"{len(rollouts)} rollouts but {len(step_advantages)} arrays of advantages")
    total = sum(rollout.num_trainable_tokens for rollout in rollouts)
    rows = []
    for rollout, advantages in zip(rollouts, step_advantages, strict=True):
        mask = np.asarray(rollout.loss_mask, np.float64)
        scale = total if aggregation == "token" else rollout.num_trainable_tokens * len(rollouts)
        logprobs = _on_response(rollout, rollout.logprobs)
        columns = {
            "weight": _on_response(rollout, mask / scale if scale else mask),
            "advantages": _on_response(rollout, on_tokens(rollout, advantages)),
            "old_logprobs": logprobs,
            "engine_logprobs": logprobs,
        }
        rows.append(TrainingRow(token_ids=_token_ids(rollout), columns=columns))
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


def with_column(rows: Sequence[TrainingRow], name: str, arrays: Sequence[np.ndarray]) -> list[TrainingRow]:
    """Returns the rows with a column [T] each added or replaced."""
    return [
        replace(row, columns=row.columns | {name: np.asarray(array, np.float32)})
        for row, array in zip(rows, arrays, strict=True)
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


def _padded(rows: Sequence[TrainingRow], row_indices: tuple[int, ...], pad_token_id: int) -> Batch:
    import torch

    lengths = [len(row.token_ids) for row in rows]
    token_ids = np.full((len(rows), max(lengths)), pad_token_id, dtype=np.int64)
    columns = {name: np.zeros(token_ids.shape, dtype=np.float32) for name in rows[0].columns}
    for b, row in enumerate(rows):
        token_ids[b, : lengths[b]] = row.token_ids
        for name, column in row.columns.items():
            columns[name][b, : lengths[b]] = column
    return Batch(
        token_ids=torch.from_numpy(token_ids),
        lengths=torch.tensor(lengths),
        columns={name: torch.from_numpy(column) for name, column in columns.items()},
        row_indices=row_indices,
    )
