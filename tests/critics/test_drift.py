from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from critics.drift import Correction, fit_correction, free_check, level_is_off, paid_check, steps_are_off
from critics.logistic import logit, sigmoid

LIMITS = {"max_bias": 0.1, "min_slope": 0.7, "max_slope": 1.4}


def rollouts_of(distort, *, number: int = 2000, seed: int = 0):
    """Values of rollouts as a critic sees them through `distort`, and outcomes."""
    rng = np.random.default_rng(seed)
    values, rewards = [], []
    for _ in range(number):
        true = sigmoid(np.full(3, rng.normal()))
        values.append(distort(true))
        rewards.append(float(rng.random() < true[-1]))
    return values, rewards


def test_a_critic_that_still_fits_is_left_alone() -> None:
    found = free_check(*rollouts_of(lambda V: V))
    assert abs(found["bias"]) < 0.03
    assert found["slope"] == pytest.approx(1, abs=0.15)
    assert found["skill"] > 0.1
    assert found["auroc"] > 0.65
    assert not level_is_off(found, **LIMITS)


@pytest.mark.parametrize(
    "distort",
    [
        lambda V: sigmoid(logit(V) - 1.0),
        lambda V: sigmoid(3 * logit(V)),
        lambda V: sigmoid(0.5 * logit(V)),
    ],
    ids=["too low", "overconfident", "timid"],
)
def test_a_level_or_slope_that_is_off_is_seen_and_mended(distort) -> None:
    values, rewards = rollouts_of(distort)
    assert level_is_off(free_check(values, rewards), **LIMITS)
    correction = fit_correction(values, rewards)
    fresh, outcomes = rollouts_of(distort, seed=1)
    found = free_check([correction(v) for v in fresh], outcomes)
    assert not level_is_off(found, **LIMITS)
    assert abs(found["bias"]) < 0.03


def test_few_rollouts_are_no_reason_to_act() -> None:
    values, rewards = rollouts_of(lambda V: sigmoid(logit(V) - 2.0), number=20)
    assert not level_is_off(free_check(values, rewards), **LIMITS)
    assert free_check([], []) == {}
    assert set(free_check(values, [1.0] * 20)) == {"bias", "rollouts"}


def test_a_correction_is_monotone_and_none_changes_no_bit() -> None:
    values = np.linspace(0.001, 0.999, 101)
    assert Correction()(values) is values
    assert (np.diff(Correction(0.3, -1.0)(values)) > 0).all()
    backwards = fit_correction(*rollouts_of(lambda V: 1 - V))
    assert backwards.slope == 0.1


def test_a_critic_that_is_right_looks_right_where_failures_end_early(early_failures) -> None:
    rollouts, V = early_failures(4000)
    values, rewards = [V[: len(r.steps)] for r in rollouts], [r.reward for r in rollouts]
    found = free_check(values, rewards)
    assert found["bias"] == pytest.approx(0.0, abs=0.02)
    assert found["slope"] == pytest.approx(1.0, abs=0.1)
    assert fit_correction(values, rewards)(V) == pytest.approx(V, abs=0.03)


@pytest.mark.parametrize("num_rollouts", [24, 64])
def test_a_perfect_critic_is_left_alone_though_few_states_leave_rho_undefined(
    make_audit, num_rollouts
) -> None:
    off = 0
    for seed in range(20):
        small, _V = make_audit(
            lambda V, rng: V, K=16, num_rollouts=num_rollouts, within=0.3, seed=seed, rollouts_per_task=1
        )
        off += steps_are_off(paid_check(small), min_sign_agreement=0.0)
    assert off <= (8 if num_rollouts == 24 else 1)


def test_a_stale_critic_is_caught_by_fresh_continuations_and_a_good_one_is_not(make_audit) -> None:
    good, _V = make_audit(lambda V, rng: V + rng.normal(0, 0.05, V.shape), K=16, num_rollouts=20)
    assert not steps_are_off(paid_check(good), min_sign_agreement=0.6)
    stale, _ = make_audit(lambda V, rng: rng.random(V.shape), K=16, num_rollouts=20)
    assert steps_are_off(paid_check(stale), min_sign_agreement=0.6)
    shuffled = replace(good, p=np.random.default_rng(0).permutation(good.p))
    assert steps_are_off(paid_check(shuffled), min_sign_agreement=0.6)
    constant = replace(good, p=np.full(len(good), 0.5))
    assert steps_are_off(paid_check(constant), min_sign_agreement=0.6)  # undefined passes nothing
