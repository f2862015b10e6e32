from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training import TrainingRow
from pipeline.training.packing import bins_of, micro_batches
from pipeline.training.rows import on_tokens, policy_rows, sft_rows
from pipeline.types import Rollout, Step


def rollout(mask: tuple[int, ...], steps: list[tuple[int, int]], prompt: int = 2, **changes: Any) -> Rollout:
    numbers: dict[str, Any] = {
        "rollout_id": "r", "kind": "whole", "task_id": "t", "group_id": "g", "iteration": 0,
        "attempt": 0, "draw": 0,
        "parent_rollout_ids": (), "start_step_index": 0, "guided": False, "feedback_in_context": "",
        "messages": (),
        "prompt_token_ids": tuple(range(prompt)), "response_token_ids": tuple(range(10, 10 + len(mask))),
        "loss_mask": mask, "logprobs": tuple(-0.25 * m for m in mask), "temperature": 1.0, "top_p": 1.0,
        "top_k": -1, "max_response_tokens": 64, "seed": 0, "policy_digest": "", "tokenizer_digest": "",
        "template_digest": "", "finish_reason": "ended", "reward": 1.0, "cost": 0.0, "env_status": "ok",
        "events": (), "feedback_text": "", "feedback_source": "",
        "steps": tuple(Step(i, i, a, b, "") for i, (a, b) in enumerate(steps)),
    }  # fmt: skip
    return Rollout(**(numbers | changes))


def test_every_trainable_token_of_every_step_carries_that_steps_advantage() -> None:
    [row] = policy_rows([rollout((1, 1, 0, 1), [(0, 2), (3, 4)])], [np.array([0.5, -2.0])])
    np.testing.assert_array_equal(row.token_ids, [0, 1, 10, 11, 12, 13])
    np.testing.assert_array_equal(row.columns["advantages"], [0, 0, 0.5, 0.5, 0, -2.0])
    np.testing.assert_allclose(row.columns["weight"], np.array([0, 0, 1, 1, 0, 1]) / 3)
    np.testing.assert_array_equal(row.columns["old_logprobs"], [0, 0, -0.25, -0.25, 0, -0.25])
    assert row.columns.keys() == {"weight", "advantages", "old_logprobs", "engine_logprobs"}


def test_given_columns_lie_on_the_response_and_replace_the_engine_s() -> None:
    own = np.array([-0.5, -0.75, 0.0, -1.0])
    [row] = policy_rows(
        [rollout((1, 1, 0, 1), [(0, 2), (3, 4)])], [np.ones(2)], [0.25], {"old_logprobs": [own]}
    )
    np.testing.assert_array_equal(row.columns["old_logprobs"], [0, 0, *own])
    np.testing.assert_array_equal(row.columns["engine_logprobs"], [0, 0, -0.25, -0.25, 0, -0.25])
    np.testing.assert_array_equal(row.columns["weight"], [0, 0, 0.25, 0.25, 0, 0.25])


def test_inserted_reply_tokens_change_no_trained_number() -> None:
    short = rollout((1, 1, 0, 1), [(0, 2), (3, 4)])
    long = rollout((1, 1, 0, 0, 0, 1, 0), [(0, 2), (5, 6)])
    trained = []
    for member in (short, long):
        [row] = policy_rows([member], [np.array([0.5, -2.0])])
        at = row.columns["weight"] != 0
        trained.append({name: column[at].tolist() for name, column in row.columns.items()})
    assert trained[0] == trained[1]


def test_steps_that_do_not_tile_the_trainable_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="token 3 has loss_mask 1 and lies in 0 steps"):
        on_tokens(rollout((1, 1, 0, 1), [(0, 2)]), np.ones(1))
    with pytest.raises(ValueError, match="token 2 has loss_mask 0 and lies in 1 steps"):
        on_tokens(rollout((1, 1, 0, 1), [(0, 3), (3, 4)]), np.ones(2))
    with pytest.raises(ValueError, match="3 numbers for 2 steps"):
        on_tokens(rollout((1, 1), [(0, 1), (1, 2)]), np.ones(3))


def test_sft_weights_sum_to_one_and_follow_the_masks() -> None:
    rows = sft_rows([[1, 2, 3], [4, 5]], [[0, 0.5, 0.5], [0, 1]])
    np.testing.assert_allclose(rows[0].columns["weight"], [0, 0.25, 0.25])
    np.testing.assert_allclose(rows[1].columns["weight"], [0, 0.5])
    with pytest.raises(ValueError, match="nothing would be learnt"):
        sft_rows([[1]], [[0]])


def rows_of(lengths: list[int]) -> list[TrainingRow]:
    return [
        TrainingRow(np.full(n, i, np.int32), {"weight": np.full(n, float(i), np.float32)})
        for i, n in enumerate(lengths)
    ]


def test_micro_batches_hold_each_row_once_within_the_budget_and_nothing_else() -> None:
    rows = rows_of([3, 9, 1, 5, 5, 2, 12])
    seen = []
    for batch in micro_batches(rows, max_tokens=10):
        assert len(batch.token_ids) == sum(batch.lengths)
        assert len(batch.token_ids) <= 10 or len(batch.row_indices) == 1
        for i, parts in batch.unpacked({"ids": batch.token_ids, **batch.columns}):
            seen.append(i)
            np.testing.assert_array_equal(parts["ids"], rows[i].token_ids)
            np.testing.assert_array_equal(parts["weight"], rows[i].columns["weight"])
    assert sorted(seen) == list(range(7))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 80))
def test_bins_hold_every_row_once_and_no_two_of_them_fit_together(lengths: list[int], capacity: int) -> None:
    bins = bins_of(lengths, capacity)
    assert sorted(i for rows in bins for i in rows) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in rows) for rows in bins]
    assert all(load <= capacity or len(rows) == 1 for load, rows in zip(loads, bins, strict=True))
    assert all(a + b > capacity for n, a in enumerate(loads) for b in loads[:n])


def test_rows_of_skewed_lengths_fill_99_percent_of_their_bins() -> None:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(6.5, 0.8, 2000).astype(int) + 1, 4096).tolist()
    bins = bins_of(lengths, 16384)
    assert sum(lengths) / (16384 * len(bins)) > 0.99


def test_malformed_rows_are_refused() -> None:
    good = TrainingRow(np.arange(2, dtype=np.int32), {"weight": np.ones(2, np.float32)})
    for bad, message in (
        (TrainingRow(np.arange(0, dtype=np.int32), {"weight": np.ones(0)}), "no tokens"),
        (TrainingRow(np.arange(2, dtype=np.int32), {"weight": np.ones(3)}), "3 entries, 2 tokens"),
        (TrainingRow(np.arange(2, dtype=np.int32), {}), "columns"),
    ):
        with pytest.raises(ValueError, match=message):
            list(micro_batches([good, bad], 100))
