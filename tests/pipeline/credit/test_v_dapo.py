import json
from typing import Any

import numpy as np
import pytest

from pipeline.credit import DECOUPLED_CLIP, ActorCritic, CreditSet, VDapo
from pipeline.credit.sets import with_values_of_others
from pipeline.credit.step_advantages import gae
from pipeline.credit.v_dapo import shrinkage_baseline


def make_set(
    rewards: list[float],
    values: list[list[float]] | None = None,
    signs: list[list[int]] | None = None,
    shaping: list[float] | None = None,
) -> CreditSet:
    values = values or [[0.5, 0.6]] * len(rewards)
    return CreditSet(
        np.array(rewards, dtype=float),
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
    shaped = [make_set([1, 0, 0.5], shaping=[-0.1, 0.0, -0.4])]
    reduced = run(VDapo(alpha=0.0, baseline="group_mean", scale="group_std"), *sets, *shaped)
    plain, _, _ = DECOUPLED_CLIP.credit([*sets, *shaped], {})
    assert [a.tobytes() for a in reduced] == [b.tobytes() for b in plain]
    # Decoupled clip does not train on equal rewards: what shaping alone tells apart is not scaled up.
    equal = make_set([1, 1, 1, 1], shaping=[0.0, 0.0, 0.0, -0.01])
    assert not DECOUPLED_CLIP.trains_on(equal)
    whole = VDapo(alpha=1.0, baseline="group_mean", scale="group_std")
    steps_alone = VDapo(alpha=1.0, baseline="group_mean", scale="group_std", step_only=True)
    assert [a.tobytes() for a in run(whole, equal)] == [b.tobytes() for b in run(steps_alone, equal)]


def test_shrinkage_by_hand() -> None:
    # Others of the success: m = 0, pt = 1/5, s2 = .16/3; (V_0 - m)^2 = .25, so w = .21333, b = .10667.
    # Others of a failure: m = 1/3, pt = 2/5, s2 = .08 > .0278, so w = 1 and b = V_0.
    baseline = shrinkage_baseline(np.array([1.0, 0, 0, 0]), np.full(4, 0.5))
    np.testing.assert_allclose(baseline, [0.16 / 3 / 0.25 * 0.5, 0.5, 0.5, 0.5])
    # From V_0 = .9 both are far: w = .16/3/.81 and .08/(17/30)^2.
    far = shrinkage_baseline(np.array([1.0, 0, 0, 0]), np.full(4, 0.9))
    np.testing.assert_allclose(far, [0.16 / 3 / 0.9, *[1 / 3 + 0.08 / (17 / 30)] * 3])
    np.testing.assert_array_equal(shrinkage_baseline(np.array([1.0]), np.array([0.3])), [0.3])


def test_the_dead_zone_is_for_differences_of_two_values_alone() -> None:
    """Half the critic's error on these; a sum of them, or one that ends in R, has another error."""
    values = [[0.5, 0.6, 0.9]]  # differences .1, .3, .1
    at = {"adv_rmse": 0.3, "step_only": True, "alpha": 1.0}
    np.testing.assert_allclose(run(VDapo(lam=0.0, **at), make_set([1.0], values))[0], [0.0, 0.15, 0.1])
    np.testing.assert_allclose(run(VDapo(lam=0.5, **at), make_set([1.0], values))[0], [0.275, 0.35, 0.1])


EXACT = [0.22 ** (1 - i / 4) for i in range(4)]
"""V of an exact critic along 4 steps of equal risk that succeed together with .22."""


def test_in_all_wrong_sets_verified_steps_gain_and_the_located_error_loses_whatever_lam() -> None:
    failed = make_set([0, 0], [EXACT, EXACT], [[1, 1, 1, -1], [0, -1, 1, -1]])
    at = {"alpha": 1.0, "step_only": True}
    for lam in (0.95, 0.0):
        first, second = run(VDapo(lam=lam, **at), failed)
        np.testing.assert_allclose(first, np.array([0.101, 0.148, 0.216, -0.685]) / 2, atol=6e-4)
        assert second[1] == 0  # the verifier objects
    mixed = make_set([1, 0], [EXACT, EXACT])
    assert run(VDapo(**at), mixed)[1][0] < 0  # elsewhere lam holds
    right = make_set([1, 1], [EXACT, EXACT], [[1, 1, 1, -1], [0, -1, 1, -1]])
    for own in run(VDapo(lam=1.0, **at), right):  # R - V, whatever the verifier says
        np.testing.assert_allclose(own, 1 - np.array(EXACT))


def test_both_parts_add_up_by_hand() -> None:
    mode = VDapo(alpha=0.5, lam=1.0)
    state = {"group_square": 0.04, "step_square": 0.01, "weight": 1.0}  # sigmas .2 and .1
    [steps], metrics, _ = mode.credit([make_set([1.0], [[0.6, 0.9]])], state)
    # A_grp = 1 - .6 = .4, / .2 = 2; steps R - V = .4, .1, / .1 = 4 -> 3, 1
    np.testing.assert_allclose(steps, [2 + 0.5 * 3, 2 + 0.5 * 1])
    assert metrics["step/single/clipped_share"] == 0.5


def test_scales_have_a_floor_of_a_twentieth() -> None:
    mode, tiny = VDapo(alpha=0.5, lam=1.0), {"group_square": 1e-8, "step_square": 1e-8, "weight": 1.0}
    [steps], metrics, _ = mode.credit([make_set([1.0], [[0.9, 0.95]])], tiny)
    # A_grp = 1 - .9 = .1, / .05 = 2; steps R - V = .1, .05, / .05 = 2, 1
    np.testing.assert_allclose(steps, [2 + 0.5 * 2, 2 + 0.5 * 1])
    assert metrics["sigma/group"] == metrics["sigma/step"] == pytest.approx(1e-4)
    assert metrics["step/single/clipped_share"] == 0.0


def test_a_step_right_at_the_clip_counts_as_clipped() -> None:
    state = {"group_square": 1.0, "step_square": 0.0625, "weight": 1.0}  # sigma of steps 1/4
    metrics = VDapo(lam=1.0).credit([make_set([1.0], [[0.25, 0.5]])], state)[1]  # R - V = 3/4, 1/2
    assert metrics["step/single/clipped_share"] == 0.5


def test_metrics_say_how_much_each_part_says_in_each_kind_of_set() -> None:
    mode = VDapo(alpha=0.5, lam=1.0)  # V is .5, then .6: steps are R - V
    found = mode.credit([make_set([1, 0]), make_set([0, 0])], mode.initial_state())[1]
    step = np.array([0.5, 0.4, -0.5, -0.6])
    assert found["step/mixed/mean"] == pytest.approx(step.mean())
    assert found["step/mixed/rms"] == pytest.approx(np.sqrt(np.mean(step**2)))
    # The other earned 0: pt = 1/3, s2 = 2/9, (V_0 - m)^2 = 1/4, so b = 8/9 * .5 and R - b = 5/9.
    assert found["group/mixed/rms"] == pytest.approx(5 / 9)
    assert (found["sets/mixed"], found["sets/all_wrong"], found["sets/single"]) == (1, 1, 0)


def test_without_weight_the_step_part_is_measured_all_the_same() -> None:
    found = [VDapo(alpha=a).credit([make_set([1, 0])], VDapo().initial_state()) for a in (0.0, 0.5)]
    assert found[0][1]["step/mixed/rms"] == found[1][1]["step/mixed/rms"] > 0
    assert found[0][2] == found[1][2]  # and its scale is known once it has weight


def test_scales_come_from_earlier_updates_and_survive_json() -> None:
    mode = VDapo()
    sets = [make_set([1, 0, 0, 1], [[0.5, 0.7], [0.5, 0.2], [0.5, 0.4, 0.1], [0.5]])]
    first, metrics, state = mode.credit(sets, mode.initial_state())
    assert metrics["sigma/group"] == metrics["sigma/step"] == 1.0
    assert state["group_square"] == pytest.approx(0.1 * 0.5**2)  # every R - V_0, as b = V_0
    second, metrics, later = mode.credit(sets, json.loads(json.dumps(state)))
    pairs = zip(sets[0].rewards, sets[0].values or [], strict=True)
    unscaled = np.concatenate([gae(r, v, gamma=1, lam=0.95) for r, v in pairs])
    assert metrics["sigma/step"] == pytest.approx(np.sqrt(np.mean(unscaled**2)))
    assert metrics["sigma/group"] == pytest.approx(0.5)
    assert np.abs(second[0]).max() > np.abs(first[0]).max()
    assert later["weight"] == pytest.approx(0.19)  # .1 + .9 * .1: the unbiased EMA of decay .9
    assert mode.credit([], later)[2] == later


def test_sets_of_equal_rewards_are_trained_on_wherever_they_have_an_advantage() -> None:
    sets = [make_set(r) for r in ([0, 0], [1, 1], [1, 0], [1])]

    def of(**options: Any) -> list[bool]:
        return [VDapo(**options).trains_on(s) for s in sets]

    assert of() == of(alpha=0.0) == [True] * 4  # A_grp = R - b is not 0 where the critic has a say in b
    assert of(baseline="group_mean") == [True, True, True, False]
    assert of(alpha=0.0, baseline="group_mean") == [False, False, True, False]
    assert of(alpha=0.0, step_only=True) == [False] * 4


def test_equal_rewards_have_no_standard_deviation_to_be_divided_by() -> None:
    state = {"group_square": 0.04, "step_square": 1.0, "weight": 1.0}
    mode = VDapo(alpha=0.0, scale="group_std")
    [wrong, _, right, _], _, _ = mode.credit([make_set([0, 0]), make_set([1, 0])], state)
    b = shrinkage_baseline(np.zeros(2), np.full(2, 0.5))[0]
    np.testing.assert_allclose(wrong, -b / 0.2)
    c = shrinkage_baseline(np.array([1.0, 0.0]), np.full(2, 0.5))[0]
    np.testing.assert_allclose(right, (1 - c) / 0.5**0.5, rtol=1e-5)


def test_graded_rewards_are_compared_and_differenced_as_they_are() -> None:
    graded = make_set([0.25, 0.75], [[0.5, 0.5], [0.5, 0.6]])
    # Others' mean .75 and .25; pt = 7/12 and 5/12, s2 = 35/144 > 1/16, so b = V_0.
    np.testing.assert_allclose(run(VDapo(alpha=0.0), graded)[0], -0.25)
    steps = run(VDapo(alpha=1.0, lam=0.0, step_only=True), graded)
    np.testing.assert_allclose(np.concatenate(steps), [0.0, -0.25, 0.1, 0.15])


def test_the_critic_never_sees_shaping() -> None:
    mode = VDapo(step_only=True)
    plain, shaped = make_set([1, 0]), make_set([1, 0], shaping=[-0.5, 0.0])
    for a, b in zip(run(mode, plain), run(mode, shaped), strict=True):
        np.testing.assert_array_equal(a, b)
    for i, change in ((0, -0.5), (1, 0.5)):  # P less the other's
        assert run(VDapo(), shaped)[i][0] - run(VDapo(), plain)[i][0] == pytest.approx(change)
    by_mean = run(VDapo(alpha=0.0, baseline="group_mean"), shaped)
    np.testing.assert_allclose(by_mean, [[0.25, 0.25], [-0.25, -0.25]])
    # In a set of one there is nobody to compare lengths with.
    np.testing.assert_array_equal(
        run(VDapo(), make_set([1]))[0], run(VDapo(), make_set([1], shaping=[-0.5]))[0]
    )


def test_missing_values_are_refused_where_they_are_needed() -> None:
    bare = CreditSet(np.array([1.0, 0.0]), [np.zeros(1)] * 2)
    for needs in (VDapo(), VDapo(baseline="group_mean"), ActorCritic()):
        with pytest.raises(ValueError, match="decoupled_clip"):
            needs.credit([bare], needs.initial_state())
    assert not VDapo(alpha=0.0, baseline="group_mean").needs_values
    assert len(run(VDapo(alpha=0.0, baseline="group_mean"), bare)) == 2


def test_a_shuffled_critic_gives_each_rollout_the_values_of_another_one_of_its_length() -> None:
    rng = np.random.default_rng(0)
    sets = [make_set([1, 0, 0], [list(rng.random(T)) for T in (2, 3, 2)]) for _ in range(4)]
    alone = make_set([1.0, 0.0], [[0.2, 0.4, 0.6, 0.8], [0.3]])
    own = [v for s in (*sets, alone) for v in s.values or ()]
    others = [v for s in with_values_of_others([*sets, alone]) for v in s.values or ()]
    mean = np.concatenate(own).mean()
    for before, after in zip(own[:-2], others[:-2], strict=True):
        assert len(before) == len(after)
        assert set(before).isdisjoint(after)
    assert sorted(map(tuple, own[:-2])) == sorted(map(tuple, others[:-2]))
    np.testing.assert_allclose(np.concatenate(others[-2:]), mean, rtol=1e-12)


def test_step_advantages_of_an_exact_critic_know_which_steps_matter_and_shuffled_ones_do_not() -> None:
    """A success is won by a step that wins V 1/2 -> 1 or lost by one that ends at 0, at a random place."""
    rng = np.random.default_rng(1)
    sets, matters = [], []
    for _ in range(200):
        at, won = int(rng.integers(4)), int(rng.integers(2))
        sets.append(make_set([won], [[0.5] * (at + 1) + [won] * (3 - at)]))
        matters.append((2 * won - 1) * (np.arange(4) == at))
    found = {}
    for shuffled in (False, True):
        mode = VDapo(alpha=1.0, lam=0.0, step_only=True, shuffled=shuffled)
        found[shuffled] = np.corrcoef(np.concatenate(run(mode, *sets)), np.concatenate(matters))[0, 1]
    assert found[False] == pytest.approx(1.0)
    assert abs(found[True]) < 0.5
