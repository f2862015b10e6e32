import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training import TrainingRow
from pipeline.training.packing import bins_of, dealt, micro_batches
from pipeline.training.rows import on_tokens, policy_rows, sft_rows
from tests.rollouts import rollout


def test_every_trainable_token_of_every_step_carries_that_steps_advantage() -> None:
    [row] = policy_rows([rollout()], [np.array([0.5, -2.0])])
    np.testing.assert_array_equal(row.token_ids, [0, 1, 10, 11, 12, 13])
    np.testing.assert_array_equal(row.columns["advantages"], [0, 0, 0.5, 0.5, 0, -2.0])
    np.testing.assert_allclose(row.columns["weight"], np.array([0, 0, 1, 1, 0, 1]) / 3)
    np.testing.assert_array_equal(row.columns["old_logprobs"], [0, 0, -0.25, -0.25, 0, -0.25])
    assert row.columns.keys() == {"weight", "advantages", "old_logprobs", "engine_logprobs"}


def test_given_columns_lie_on_the_response_and_replace_the_engine_s() -> None:
    own = np.array([-0.5, -0.75, 0.0, -1.0])
    [row] = policy_rows([rollout()], [np.ones(2)], [0.25], {"old_logprobs": [own]})
    np.testing.assert_array_equal(row.columns["old_logprobs"], [0, 0, *own])
    np.testing.assert_array_equal(row.columns["engine_logprobs"], [0, 0, -0.25, -0.25, 0, -0.25])
    np.testing.assert_array_equal(row.columns["weight"], [0, 0, 0.25, 0.25, 0, 0.25])


@pytest.mark.parametrize(
    ("steps", "numbers", "message"),
    [
        ([(0, 2)], 1, "token 3 has loss_mask 1 and lies in 0 steps"),
        ([(0, 3), (3, 4)], 2, "token 2 has loss_mask 0 and lies in 1 steps"),
        ([(0, 2), (3, 4)], 3, "3 numbers for 2 steps"),
    ],
)
def test_steps_that_do_not_tile_the_trainable_tokens_are_refused(
    steps: list[tuple[int, int]], numbers: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        on_tokens(rollout((1, 1, 0, 1), steps), np.ones(numbers))


def test_sft_weights_sum_to_one_and_follow_the_masks() -> None:
    rows = sft_rows([[1, 2, 3], [4, 5]], [[0, 0.5, 0.5], [0, 1]])
    np.testing.assert_allclose(rows[0].columns["weight"], [0, 0.25, 0.25])
    np.testing.assert_allclose(rows[1].columns["weight"], [0, 0.5])
    with pytest.raises(ValueError, match="nothing would be learnt"):
        sft_rows([[1]], [[0]])


def row_of(length: int, **columns: int) -> TrainingRow:
    numbers = {name: np.arange(size, dtype=np.float32) + length for name, size in columns.items()}
    return TrainingRow(np.full(length, length, np.int32), numbers)


def test_micro_batches_hold_each_row_once_within_the_budget_and_nothing_else() -> None:
    rows = [row_of(n, weight=n) for n in (3, 9, 1, 5, 5, 2, 12)]
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


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 80), st.integers(1, 5))
def test_ranks_get_every_row_once_within_the_budget(lengths: list[int], capacity: int, ranks: int) -> None:
    shares = dealt(lengths, capacity, ranks)
    bins = [members for share in shares for members in share]
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in rows) <= capacity or len(rows) == 1 for rows in bins)
    assert len({len(share) for share in shares}) == 1 or len(lengths) == len(bins)
    if ranks == 1:  # sums are added up in this order
        assert shares[0] == sorted(bins_of(lengths, capacity), key=lambda b: -sum(lengths[i] for i in b))


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("mean", [300, 1200])
@pytest.mark.parametrize("rows", [64, 128, 512])
def test_no_rank_waits_long_for_the_heaviest(rows: int, mean: int, ranks: int) -> None:
    drawn = np.random.default_rng(rows).lognormal(np.log(mean), 0.6, rows)
    lengths = [int(n) for n in drawn.clip(50, 8000)]
    loads = [sum(lengths[i] for batch in share for i in batch) for share in dealt(lengths, 16384, ranks)]
    assert max(loads) < 1.03 * sum(lengths) / ranks


def test_rows_with_columns_that_do_not_fit_are_refused() -> None:
    for bad, message in ((row_of(2, weight=3), "3 entries, 2 tokens"), (row_of(2), "columns")):
        with pytest.raises(ValueError, match=message):
            list(micro_batches([row_of(2, weight=2), bad], 100))
