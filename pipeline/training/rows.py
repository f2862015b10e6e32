"""Rollouts and advantages, or demonstrations, to rows of tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.steps import check_tiling
from pipeline.training.protocol import TrainingRow
from pipeline.types import Rollout


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
        rollouts: of the whole update.
        step_advantages: [T_i] of each rollout, entry j for `rollout.steps[j]`.
        token_weights: of each trainable token of each rollout; None is 1 / trainable tokens of all.
        columns: name -> [len(response)] numbers of each rollout.

    Raises:
        ValueError: as `on_tokens`.
    """
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
        rows.append(TrainingRow(token_ids=np.array(rollout.token_ids, dtype=np.int32), columns=made))
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
    check_tiling(rollout)
    numbers = np.zeros(len(rollout.response_token_ids))
    for step, number in zip(rollout.steps, step_numbers, strict=True):
        numbers[step.token_start : step.token_end] = number
    return numbers


def sft_rows(
    token_ids: Sequence[Sequence[int]], loss_masks: Sequence[Sequence[float] | np.ndarray]
) -> list[TrainingRow]:
    """Returns the rows of one whole supervised update, `weight` = mask / sum of all masks.

    A row's mask is 1 where its token is learnt, 0 elsewhere; numbers in between are allowed.
    """
    masks = [np.asarray(mask, np.float64) for mask in loss_masks]
    total = float(sum(mask.sum() for mask in masks))
    if total <= 0:
        raise ValueError(f"{len(masks)} rows with a total weight of {total}; nothing would be learnt")
    return [
        TrainingRow(np.asarray(ids, np.int32), {"weight": (mask / total).astype(np.float32)})
        for ids, mask in zip(token_ids, masks, strict=True)
    ]


def imitation_rows(rollouts: Sequence[Rollout], step_weights: Sequence[np.ndarray]) -> list[TrainingRow]:
    """Returns the rows of one whole update that imitates steps: `weight` of their tokens / sum of all.

    `step_weights` are [T_i] of each rollout. Raises ValueError as `on_tokens` and `sft_rows`.
    """
    weights = [_on_response(r, on_tokens(r, w)) for r, w in zip(rollouts, step_weights, strict=True)]
    return sft_rows([r.token_ids for r in rollouts], weights)


def _on_response(rollout: Rollout, numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns [prompt + response] float32: 0 on the prompt, the numbers on the response."""
    prompt = len(rollout.prompt_token_ids)
    return np.concatenate([np.zeros(prompt), np.asarray(numbers, np.float64)]).astype(np.float32)
