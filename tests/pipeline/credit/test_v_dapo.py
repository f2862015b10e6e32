from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pipeline.credit import CreditSet, DecoupledClip, VDapo
from pipeline.credit.step_advantages import gae, outcome_rewards
from pipeline.credit.v_dapo import shrinkage_baseline, soft_threshold


def make_set(
    rewards: list[float],
    values: list[list[float]] | None = None,
    signs: list[list[int]] | None = None,
    shaping: list[float] | None = None,
) -> CreditSet:
    values = values or [[0.5, 0.6]] * len(rewards)
    return CreditSet(
        np.array(rewards, dtype=float),
        num_tokens=[np.full(len(v), 3) for v in values],
        signs=[np.array(s) for s in signs] if signs else [np.zeros(len(v), int) for v in values],
        values=[np.array(v) for v in values],
        shaping=None if shaping is None else np.array(shaping),
    )


def run(mode: VDapo, *sets: CreditSet) -> list[np.ndarray]:
    return mode.credit(sets, mode.initial_state())[0]


def test_alpha_zero_over_group_mean_and_std_is_decoupled_clip_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    sets = [
        make_set(list(rng.integers(0, 2, size=8)), [list(rng.random(1 + i % 4)) for i in range(8)])
        for _ in range(20)
    ]
    shaped = [make_set([1, 0, 0.5], shaping=[-0.1, 0.0, -0.4]), make_set([1, 1], shaping=[0.0, -0.3])]
    reduced = run(VDapo(alpha=0.0, baseline="group_mean", scale="group_std"), *sets, *shaped)
    plain, _, _ = DecoupledClip().credit([*sets, *shaped], {})
    assert [a.tobytes() for a in reduced] == [b.tobytes() for b in plain]


def test_shrinkage_by_hand() -> None:
    # Others of the success: m = 0, pt = 1/5, s2 = .16/3; (V_0 - m)^2 = .25, so w = .21333, b = .10667.
    # Others of a failure: m = 1/3, pt = 2/5, s2 = .08 > .0278, so w = 1 and b = V_0.
    baseline = shrinkage_baseline(np.array([1.0, 0, 0, 0]), np.full(4, 0.5))
    np.testing.assert_allclose(baseline, [0.16 / 3 / 0.25 * 0.5, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(shrinkage_baseline(np.array([1.0]), np.array([0.3])), [0.3])


def test_changing_a_reward_leaves_the_rollouts_own_baseline_unchanged() -> None:
    values = np.full(4, 0.7)
    ours, other = (shrinkage_baseline(np.array([r, 1.0, 0.0, 0.0]), values) for r in (0.0, 1.0))
    assert ours[0] == other[0]
    assert not np.array_equal(ours[1:], other[1:])


def test_soft_threshold_is_a_dead_zone_of_half_the_critics_error() -> None:
    np.testing.assert_allclose(soft_threshold(np.array([-0.3, -0.1, 0.05, 0.4]), 0.1), [-0.2, 0, 0, 0.3])
    mode = VDapo(adv_rmse=0.3, lam=0.0, step_only=True, alpha=1.0)
    steps = run(mode, make_set([1.0], [[0.5, 0.6, 0.9]]))[0]
    np.testing.assert_allclose(steps, [0.0, 0.15, 0.0], atol=1e-12)  # deltas .1, .3, .1; tau .15; sigma 1


def test_both_parts_add_up_by_hand() -> None:
    mode = VDapo(alpha=0.5, lam=1.0)
    state = {"group_square": 0.04, "step_square": 0.01, "weight": 1.0}  # sigmas .2 and .1
    [steps], metrics, _ = mode.credit([make_set([1.0], [[0.6, 0.9]])], state)
    # A_grp = 1 - .6 = .4, / .2 = 2; steps R - V = .4, .1, / .1 = 4 -> 3, 1
    np.testing.assert_allclose(steps, [2 + 0.5 * 3, 2 + 0.5 * 1])
    assert metrics["step/single/clipped_share"] == 0.5


def test_scales_come_from_earlier_updates_and_survive_json() -> None:
    mode = VDapo()
    sets = [make_set([1, 0, 0, 1], [[0.5, 0.7], [0.5, 0.2], [0.5, 0.4, 0.1], [0.5]])]
    first, metrics, state = mode.credit(sets, mode.initial_state())
    assert metrics["sigma/group"] == metrics["sigma/step"] == 1.0
    second, metrics, later = mode.credit(sets, json.loads(json.dumps(state)))
    soft = np.concatenate(
        [
            gae(outcome_rewards(r, len(v)), v, gamma=1, lam=0.95)
            for r, v in zip(sets[0].rewards, sets[0].values, strict=True)
        ]  # type: ignore[arg-type]
    )
    assert metrics["sigma/step"] == pytest.approx(np.sqrt(np.mean(soft**2)))
    assert np.abs(second[0]).max() > np.abs(first[0]).max()
    assert later["weight"] == pytest.approx(0.19)  # .1 + .9 * .1: the unbiased EMA of decay .9
    assert mode.credit([], later)[2] == later


def test_a_wrong_set_moves_only_where_the_verifier_does_not_object() -> None:
    values = [[0.5, 0.8, 0.4], [0.5, 0.8, 0.4]]  # deltas +.3, -.4, -.4
    wrong = make_set([0, 0], values, [[1, 1, -1], [-1, 0, 0]])
    mixed = make_set([1, 0])
    mode = VDapo(alpha=1.0, lam=0.0, step_only=True)
    steps = run(mode, wrong, mixed, mixed, mixed)
    np.testing.assert_allclose(steps[0], [0.15, 0.0, -0.2])
    np.testing.assert_allclose(steps[1], [0.0, -0.2, -0.2])


def test_wrong_sets_are_at_most_a_quarter() -> None:
    wrong, mixed, right, single = make_set([0, 0]), make_set([1, 0]), make_set([1, 1]), make_set([0])
    sets = [wrong, wrong, mixed, wrong, right, single]
    assert VDapo().keep(sets) == [True, False, True, False, True, True]
    assert VDapo().keep([wrong] * 5) == [False] * 5
    # Were a caller to train on more, those beyond the share get no step credit.
    steps = run(VDapo(step_only=True, lam=0.0), wrong, wrong, mixed, mixed)
    assert np.any(steps[0] != 0)
    assert not np.any(np.concatenate(steps[2:4]))


def test_without_a_step_part_uniform_sets_are_not_kept() -> None:
    sets = [make_set([0, 0]), make_set([1, 1]), make_set([1, 0]), make_set([1])]
    assert VDapo(alpha=0.0).keep(sets) == [False, False, True, True]
    assert VDapo(alpha=0.0, baseline="group_mean").keep(sets) == [False, False, True, False]


def test_the_critic_never_sees_shaping() -> None:
    mode = VDapo(step_only=True)
    plain, shaped = make_set([1, 0]), make_set([1, 0], shaping=[-0.5, 0.0])
    for a, b in zip(run(mode, plain), run(mode, shaped), strict=True):
        np.testing.assert_array_equal(a, b)
    assert run(VDapo(), plain)[0][0] - run(VDapo(), shaped)[0][0] == pytest.approx(0.5)
    # In a set of one there is nobody to compare lengths with.
    np.testing.assert_array_equal(
        run(VDapo(), make_set([1]))[0], run(VDapo(), make_set([1], shaping=[-0.5]))[0]
    )


@pytest.mark.parametrize("settings", [{"alpha": -1.0}, {"adv_rmse": float("nan")}, {"max_wrong_share": 1.0}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        VDapo(**settings)


def test_missing_values_are_refused_with_the_way_out() -> None:
    bare = CreditSet(np.array([1.0, 0.0]), [np.ones(1)] * 2, [np.zeros(1)] * 2)
    with pytest.raises(ValueError, match="decoupled_clip"):
        run(VDapo(), bare)
    assert not VDapo(alpha=0.0, baseline="group_mean").needs_critic
    assert len(run(VDapo(alpha=0.0, baseline="group_mean"), bare)) == 2
