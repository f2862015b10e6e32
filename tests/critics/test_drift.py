from dataclasses import replace

import numpy as np
import pytest

from critics.drift.checks import (
    Correction,
    FreeCheck,
    fit_correction,
    free_check,
    is_measured,
    level_is_off,
    paid_check,
    steps_are_off,
)
from critics.logit import logit, sigmoid
from tests.critics.conftest import make_audit


def rollouts_of(distort, *, number: int = 2000, seed: int = 0):
    """Values of rollouts as a critic sees them through `distort`, and outcomes."""
    rng = np.random.default_rng(seed)
    values, rewards = [], []
    for _ in range(number):
        true = sigmoid(np.full(3, rng.normal()))
        values.append(distort(true))
        rewards.append(float(rng.random() < true[-1]))
    return values, rewards


def checked(values, rewards, *, per_cluster: int = 1) -> FreeCheck:
    return free_check(values, rewards, [f"c{i // per_cluster}" for i in range(len(rewards))])


@pytest.mark.parametrize(
    ("slope", "shift"),
    [(1.0, 0.0), (1.0, -1.0), (3.0, 0.0), (0.5, 0.0)],
    ids=["right", "too low", "overconfident", "timid"],
)
def test_a_level_or_slope_that_is_off_is_seen_and_mended_and_a_right_critic_is_left_alone(slope, shift):
    values, rewards = rollouts_of(lambda V: sigmoid(slope * logit(V) + shift))
    found = checked(values, rewards)
    assert level_is_off(found) is ((slope, shift) != (1.0, 0.0))
    assert found.slope.value == pytest.approx(1 / slope, rel=0.15)
    correction = fit_correction(values, rewards)
    fresh, outcomes = rollouts_of(lambda V: sigmoid(slope * logit(V) + shift), seed=1)
    found = checked([correction(v) for v in fresh], outcomes)
    assert not level_is_off(found)
    assert abs(found.bias.value) < 0.03


def test_few_rollouts_or_clusters_are_no_reason_to_act():
    def off(number: int, per_cluster: int) -> bool:
        values, rewards = rollouts_of(lambda V: sigmoid(logit(V) - 2.0), number=number)
        return level_is_off(checked(values, rewards, per_cluster=per_cluster))

    assert [off(20, 1), off(400, 40), off(400, 8)] == [False, False, True]


def test_outcomes_that_are_all_alike_correct_nothing():
    values, _ = rollouts_of(lambda V: V, number=200)
    found = checked(values, [1.0] * 200)
    assert found.bias.high < 0
    assert np.isnan(found.slope.value)
    assert not level_is_off(found)
    assert fit_correction(values, [1.0] * 200) == Correction()
    # Nor does a single failure blow a correction up: the prior holds it.
    nearly = fit_correction(values[:60], [1.0] * 59 + [0.0])
    assert 0.1 <= nearly.slope < 3
    assert abs(nearly.shift) < 4


def of_clusters(rng: np.random.Generator, number: int, hidden: float, draws: int = 8):
    """E[V | seen], outcomes, clusters: of each cluster a task, whose hidden part all of its draws share."""
    grid = np.linspace(-8, 8, 801)
    parts = rng.normal(0, hidden, 4000)
    expected = np.array([sigmoid(x + parts).mean() for x in grid])
    values, rewards, clusters = [], [], []
    for i in range(number):
        seen, part = rng.normal() - 0.5, hidden * rng.normal()
        for _ in range(draws):
            now = seen + 0.7 * rng.normal()
            values.append(np.interp([seen, now], grid, expected))
            rewards.append(float(rng.random() < sigmoid(now + part)))
            clusters.append(f"c{i}")
    return values, rewards, clusters


@pytest.mark.parametrize("number", [7, pytest.param(24, marks=pytest.mark.slow)])
def test_what_clusters_hide_does_not_make_a_right_critic_look_off(number):
    """Eight draws of a task share what its cluster hides: point estimates leave the limits by chance."""
    rng = np.random.default_rng(number)
    checks = [free_check(*of_clusters(rng, number, 1.0)) for _ in range(30)]
    assert sum(level_is_off(check) for check in checks) <= 4
    # Without a look at intervals and clusters many would.
    assert sum(abs(c.bias.value) > 0.1 or not 0.7 <= c.slope.value <= 1.4 for c in checks) > 4


def test_a_correction_is_monotone_and_none_changes_no_bit():
    values = np.linspace(0.001, 0.999, 101)
    assert Correction()(values) is values
    assert (np.diff(Correction(0.3, -1.0)(values)) > 0).all()
    assert Correction().undo(values) is values
    assert Correction(0.3, -1.0).undo(Correction(0.3, -1.0)(values)) == pytest.approx(values)
    backwards = fit_correction(*rollouts_of(lambda V: 1 - V))
    assert backwards.slope == 0.1


def test_a_critic_that_is_right_looks_right_where_failures_end_early(early_failures):
    rollouts, V = early_failures
    values, rewards = [V[: len(r.steps)] for r in rollouts], [r.reward for r in rollouts]
    found = checked(values, rewards)
    assert found.bias.value == pytest.approx(0.0, abs=0.02)
    assert found.slope.value == pytest.approx(1.0, abs=0.1)
    assert fit_correction(values, rewards)(V) == pytest.approx(V, abs=0.03)


@pytest.mark.parametrize(("num_rollouts", "most"), [(24, 8), (64, 1)])
def test_a_perfect_critic_is_left_alone_though_few_states_leave_rho_undefined(num_rollouts, most):
    """64 rollouts of 4 states are what a paid check takes unless told otherwise; 24 are too few."""
    options = {"K": 16, "num_rollouts": num_rollouts, "within": 0.3, "rollouts_per_task": 1}
    audits = [make_audit(lambda V, rng: V, seed=seed, **options)[0] for seed in range(20)]
    assert sum(steps_are_off(paid_check(audit, num_resamples=200)) for audit in audits) <= most


def test_a_perfect_critic_is_not_judged_where_no_step_changes_the_chance():
    """An actor that solves everything: A and Ahat hardly vary, so their covariance touches 0."""
    judged = touching = 0
    for seed in range(20):
        found, V = make_audit(
            lambda V, rng: 1 - V / 50, K=16, num_rollouts=64, within=0.1, seed=seed, rollouts_per_task=1
        )
        sure = replace(found, k=np.random.default_rng(seed).binomial(16, 1 - V.ravel() / 50))
        check = paid_check(sure, num_resamples=200)
        touching += steps_are_off(check)
        judged += is_measured(check)
    assert touching >= 15
    assert judged <= 3


def test_a_stale_critic_is_caught_by_fresh_continuations_and_a_good_one_is_not():
    """Nothing is measured without states in a row, or by one company."""
    good, _V = make_audit(lambda V, rng: V + rng.normal(0, 0.05, V.shape), K=16, num_rollouts=20)
    assert is_measured(paid_check(good))
    assert not steps_are_off(paid_check(good))
    rng = np.random.default_rng(0)
    for stale in (rng.random(len(good)), rng.permutation(good.p), np.full(len(good), 0.5)):
        check = paid_check(replace(good, p=stale))
        assert is_measured(check)
        assert steps_are_off(check)
    for part in (
        good.where(np.zeros(len(good), dtype=bool)),
        good.where(good.step_index == 0),
        replace(good, cluster=np.full(len(good), "c")),
    ):
        assert not is_measured(paid_check(part))
