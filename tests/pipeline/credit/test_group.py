from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.credit import (
    DECOUPLED_CLIP,
    GRPO,
    MODES,
    CreditSet,
    GroupRelative,
    LossOptions,
    VDapo,
    make_credit,
)
from pipeline.credit.group import group_advantages, leave_one_out_mean
from pipeline.credit.sets import overlong_penalty


def plain_set(rewards: list[float], shaping: list[float] | None = None) -> CreditSet:
    signs = [np.zeros(1 + i % 3) for i in range(len(rewards))]
    return CreditSet(np.array(rewards), signs, shaping=None if shaping is None else np.array(shaping))


def test_group_advantage_by_hand() -> None:
    # mean 1/4, unbiased std 1/2
    np.testing.assert_allclose(group_advantages(np.array([1.0, 0, 0, 0])), [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    np.testing.assert_array_equal(group_advantages(np.ones(4)), np.zeros(4))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(0, 7), st.floats(0, 1))
def test_own_number_never_enters_the_leave_one_out_mean(numbers: list[float], i: int, other: float) -> None:
    i %= len(numbers)
    changed = [*numbers[:i], other, *numbers[i + 1 :]]
    assert leave_one_out_mean(np.array(numbers))[i] == leave_one_out_mean(np.array(changed))[i]


def test_a_set_with_one_success_is_trained_on_whole_and_graded_rewards_that_differ_are_mixed() -> None:
    sets = [plain_set(r) for r in ([1, 0, 0, 0], [1, 1, 1], [0, 0], [1], [0.2, 0.3], [0.4, 0.4])]
    assert [DECOUPLED_CLIP.trains_on(s) for s in sets] == [True, False, False, False, True, False]
    assert [GRPO.trains_on(s) for s in sets] == [True, True, True, False, True, True]
    advantages, metrics, _ = DECOUPLED_CLIP.credit(sets[:1], {})
    assert [len(a) for a in advantages] == [1, 2, 3, 1]
    assert metrics["advantage/rms"] == pytest.approx(0.75**0.5, rel=1e-5)
    assert DECOUPLED_CLIP.credit([], {})[1]["advantage/rms"] == 0.0
    graded, _, _ = DECOUPLED_CLIP.credit([sets[4]], {})
    np.testing.assert_allclose([a[0] for a in graded], [-(0.5**0.5), 0.5**0.5], rtol=1e-4)


def test_shaping_enters_the_group_advantage_but_not_dynamic_sampling() -> None:
    """Shaping makes every set vary: judged on it, sets without a signal would be kept."""
    sets = [plain_set([0, 0], [-0.5, 0.0]), plain_set([1, 0], [-1.0, 0.0])]  # the second is uniform after P
    assert [DECOUPLED_CLIP.trains_on(s) for s in sets] == [False, True]
    steps, _, _ = GRPO.credit([plain_set([1, 1], [0.0, -0.5])], {})
    assert steps[0][0] > 0 > steps[1][0]


def test_overlong_penalty_is_zero_before_the_buffer_and_whole_at_the_budget() -> None:
    lengths, budgets = np.array([1, 16384, 18432, 20480, 30000]), np.full(5, 20480)
    # Published with rewards of +-1 and factor 1: twice ours, so group advantages are the same.
    for factor in (0.5, 1.0):
        penalties = overlong_penalty(lengths, budgets, factor=factor)
        np.testing.assert_allclose(penalties, factor * np.array([0, 0, -0.5, -1, -1]))
    assert overlong_penalty(np.array([3]), np.array([4]), factor=1.0) == 0  # a buffer of one token


def test_a_price_weighs_as_much_as_success_unless_a_whole_update_gives_the_scale() -> None:
    sets = [plain_set([1, 1, 1, 0.9]), plain_set([1, 1, 1, 0])]

    def of(credit: GroupRelative) -> np.ndarray:
        return np.array([steps[0] for steps in credit.credit(sets, {})[0]]).reshape(2, 4)

    np.testing.assert_allclose(of(DECOUPLED_CLIP)[0], of(DECOUPLED_CLIP)[1], rtol=1e-4)
    for mode in (DECOUPLED_CLIP, GRPO):
        by_update = of(replace(mode, scale_rewards="batch"))
        np.testing.assert_allclose(by_update[0], by_update[1] / 10)
        rewards = np.array([s.rewards for s in sets])
        plain = (rewards - rewards.mean(axis=1, keepdims=True)) / rewards.std(
            ddof=1
        )  # TRL: scale_rewards=batch
        np.testing.assert_allclose(by_update, plain, rtol=1e-5)


def test_the_scale_of_a_whole_update_has_penalties_in_it() -> None:
    sets = [plain_set([1, 0]), plain_set([1, 1], shaping=[0.0, -0.5])]
    found = replace(DECOUPLED_CLIP, scale_rewards="batch").credit(sets, {})[0]
    totals = np.array([[1, 0], [1, 0.5]])
    wanted = (totals - totals.mean(axis=1, keepdims=True)) / totals.std(ddof=1)
    np.testing.assert_allclose([steps[0] for steps in found], wanted.ravel(), rtol=1e-5)


def test_modes_are_as_published() -> None:
    assert DECOUPLED_CLIP.loss == LossOptions(0.2, 0.28, 10.0, 0.0, "token")
    assert GRPO.loss == LossOptions(0.2, 0.2, None, 1e-3, "rollout")
    ours = VDapo(LossOptions(kl=1e-3), overlong_factor=0.0, alpha=0.5, lam=0.95, adv_rmse=0.0)
    assert replace(ours, baseline="shrinkage", scale="running", step_only=False) == MODES["v_dapo"]


def test_what_each_mode_asks_of_its_sets() -> None:
    """Values, more samples until rewards differ, the share of equal ones, the penalty of long rollouts."""
    asked = {
        name: (mode.needs_values, mode.dynamic_sampling, mode.max_uniform_share, mode.overlong_factor)
        for name, mode in MODES.items()
    }
    assert asked == {
        "grpo": (False, False, 1.0, 0.0),
        "decoupled_clip": (False, True, 1.0, 0.5),
        "v_dapo": (True, True, 0.5, 0.0),
        "verifier_steps": (False, True, 0.5, 0.5),
        "imitation": (False, False, 1.0, 0.0),
        "actor_critic": (True, False, 1.0, 0.0),
        "tree_rpo": (False, True, 1.0, 0.5),
    }


def test_options_are_plain_values_and_those_of_another_mode_are_refused() -> None:
    assert {name: make_credit(name) for name in MODES} == MODES
    made = make_credit("v_dapo", dual_clip=None, aggregation="rollout", lam=0.0, overlong_factor=0.5)
    loss = LossOptions(dual_clip=None, kl=1e-3, aggregation="rollout")
    assert made == VDapo(loss=loss, lam=0.0, overlong_factor=0.5)
    with pytest.raises(ValueError, match="modes are grpo, decoupled_clip, v_dapo"):
        make_credit("dapo")
    with pytest.raises(ValueError, match=r"dual_clip = 1\.28"):
        make_credit("decoupled_clip", dual_clip=1.28)  # it would clip what the ratio's own bound lets through
    assert make_credit("decoupled_clip", dual_clip=1.29).loss.dual_clip == 1.29
    with pytest.raises(TypeError, match="alpha"):
        make_credit("grpo", alpha=1.0)
