from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from critics.frozen.calibrator import MIN_SLOPE, Calibrator, fit_calibrator
from critics.labels.splits import parts_of, split_clusters
from critics.logit import binomial_regression, sigmoid
from pipeline.errors import ArtifactError
from tests.critics.conftest import make_rollout, make_task


def counts(z: np.ndarray, n: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(seed).binomial(n, sigmoid(z)), np.full(len(z), n)


def test_regression_on_counts_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=200), rng.normal(size=200), np.ones(200)], axis=1)
    n = rng.integers(1, 9, size=200)
    k = n * rng.beta(2, 3, size=200)  # fractions of successes
    reference = LogisticRegression(C=1 / 2.0, fit_intercept=False, tol=1e-10, max_iter=1000)
    reference.fit(np.concatenate([X, X]), np.repeat([1, 0], 200), sample_weight=np.concatenate([k, n - k]))
    assert binomial_regression(X, k, n, ridge=2.0) == pytest.approx(reference.coef_[0], abs=1e-5)


def test_failures_and_successes_are_stretched_apart() -> None:
    z = np.random.default_rng(10).normal(size=20_000) * 2
    truth = 3 * np.logaddexp(0, z) - 0.5 * np.logaddexp(0, -z) - 1.5
    k, n = counts(truth)
    calibrator = fit_calibrator(z - 0.3, k, n, base_logit=0.3)
    assert (calibrator.slope_low, calibrator.slope_high) == pytest.approx((0.5, 3), abs=0.1)
    assert np.abs(calibrator(z - 0.3) - sigmoid(truth)).max() < 0.02
    graded = fit_calibrator(z, sigmoid(truth), np.ones(len(z)), base_logit=0.0)  # rewards between 0 and 1
    assert np.abs(graded(z) - sigmoid(truth)).max() < 0.02
    slope, shift = binomial_regression(np.stack([z, np.ones_like(z)], axis=1), k, n)
    assert np.abs(sigmoid(slope * z + shift) - sigmoid(truth)).max() > 0.05  # one slope cannot say it


def test_a_backward_critic_is_flattened_where_it_is_and_never_inverted() -> None:
    z = np.random.default_rng(11).normal(size=20_000) * 2
    truth = 2 * np.logaddexp(0, z) + 0.5 * np.logaddexp(0, -z) - 2
    failures = fit_calibrator(z, *counts(truth), base_logit=0.0)
    assert failures.slope_low == MIN_SLOPE
    assert failures.slope_high > 0.5
    everywhere = fit_calibrator(z, *counts(-z), base_logit=0.0)
    assert everywhere.slope_low == everywhere.slope_high == MIN_SLOPE
    assert (np.diff(everywhere(np.linspace(-20, 20, 401))) > 0).all()


def test_few_bare_states_get_a_temperature_only_and_are_not_joined_by_those_after_feedback() -> None:
    z = np.random.default_rng(3).normal(size=300)
    guided = np.arange(300) >= 150
    k, n = counts(z - 2.0 * guided, 32)
    both = fit_calibrator(z / 3, k, n, base_logit=0.0, guided=guided)
    alone = fit_calibrator(z[~guided] / 3, k[~guided], n[~guided], base_logit=0.0)
    assert np.array_equal(both(z), alone(z))
    assert both.guided_shift < -1.0
    assert alone.shift == 0
    assert alone.slope_low == alone.slope_high == pytest.approx(3, abs=0.4)


def test_guided_states_shift_on_their_own_and_leave_the_bare_ones_alone() -> None:
    rng = np.random.default_rng(5)
    z, step, guided = rng.normal(size=8000), rng.integers(0, 3, 8000), rng.random(8000) < 0.3
    truth = z + 0.5 * (step == 1) - 1.5 * guided

    def fitted(at: np.ndarray) -> Calibrator:
        k, n = counts(truth, seed=9)
        return fit_calibrator(z[at], k[at], n[at], base_logit=0.0, step_index=step[at], guided=guided[at])

    both, alone = fitted(np.ones(8000, dtype=bool)), fitted(~guided)
    held = fitted(~guided | (np.cumsum(guided) <= 20))
    for found in (both, held):
        assert replace(found, guided_shift=0.0, num_states=alone.num_states) == alone
    assert both.guided_shift == pytest.approx(-1.5, abs=0.06)
    assert both.guided_shift < held.guided_shift < -0.7  # few states move it less
    assert np.abs(both(z, step_index=step, guided=guided) - sigmoid(truth)).max() < 0.03


def test_thresholds_and_priors_count_rollouts_where_states_share_an_outcome() -> None:
    """Ten copies of every state, as of one rollout, say no more of shifts than one does."""
    rng = np.random.default_rng(12)
    z, step = rng.normal(size=1000), np.arange(1000) % 3
    k, n = counts(z + 2.0 * (step == 1), 1)
    once = fit_calibrator(z, k, n, base_logit=0.0, step_index=step, guided=step == 2)
    many = [np.repeat(x, 10) for x in (z, k, n, step)]
    owner = np.repeat(np.arange(1000), 10)
    tenfold = fit_calibrator(
        *many[:3], base_logit=0.0, step_index=many[3], guided=many[3] == 2, rollout=owner
    )
    assert tenfold.position_shifts == pytest.approx(once.position_shifts, abs=0.01)
    assert tenfold.guided_shift == pytest.approx(once.guided_shift, abs=0.01)
    apart = fit_calibrator(*many[:3], base_logit=0.0, step_index=many[3], guided=many[3] == 2)
    assert np.abs(np.subtract(apart.position_shifts, once.position_shifts)).max() > 0.02
    few = fit_calibrator(*[x[:1500] for x in many[:3]], base_logit=0.0, rollout=owner[:1500])
    assert few.shift == 0


def test_a_critic_that_is_silent_or_separates_perfectly_still_gets_a_finite_map() -> None:
    k, n = np.array([0, 8] * 200), np.full(400, 8)
    silent = fit_calibrator(np.zeros(400), k, n, base_logit=1.0)
    assert silent(np.zeros(3)) == pytest.approx(0.5, abs=0.01)
    separated = fit_calibrator(np.array([-1.0, 1.0] * 200), k, n, base_logit=0.0)
    assert np.isfinite([separated.slope_low, separated.slope_high, separated.shift]).all()


def test_the_map_is_strictly_monotone_and_asks_for_steps_where_they_shift() -> None:
    p = Calibrator(0.5, 0.8, -1.0, 0.2)(np.linspace(-30, 30, 1000).reshape(10, 100))
    assert p.shape == (10, 100)
    assert (np.diff(p.ravel()) > 0).all()
    assert 0 < p.min() < p.max() < 1
    calibrator = Calibrator(1.0, 1.0, 0.0, 0.0, position_shifts=(1.0, -1.0))
    expected = sigmoid(np.array([1.0, -1, -1]))
    assert calibrator(np.zeros(3), step_index=np.array([0, 1, 5])) == pytest.approx(expected)
    with pytest.raises(ValueError, match="step_index"):
        calibrator(np.zeros(3))


def test_clusters_are_split_by_hash_into_the_shares_and_no_part_is_empty() -> None:
    def split(clusters, fit_share=0.84, validate_share=0.08):
        return split_clusters(clusters, fit_share=fit_share, validate_share=validate_share, seed=0)

    names = [f"c{i}" for i in range(100)]
    parts = split(names)
    sizes = {part: list(parts.values()).count(part) for part in ("fit", "validate", "calibrate")}
    assert sizes == {"fit": 84, "validate": 8, "calibrate": 8}
    assert parts == split(names[::-1])
    assert sorted(split(names[:10], 0.8, 0.1).values()) == ["calibrate", *["fit"] * 8, "validate"]
    for shares in ((0.84, 0.08), (0.1, 0.5), (0.1, 0.2)):
        assert sorted(split(["a", "b", "c", "a"], *shares).values()) == ["calibrate", "fit", "validate"]
    with pytest.raises(ArtifactError, match=r"2 clusters .*Next: tasks of more clusters"):
        split(["a", "b"])


def test_each_step_shifts_on_its_own_and_rare_late_steps_stay_near_the_common_map() -> None:
    rng = np.random.default_rng(6)
    step = rng.choice(20, size=20_000, p=[0.3, 0.3, 0.2, 0.1, *[0.1 / 16] * 16])
    wrong = np.array([1.0, -1.0, 0.5, 0.0])[np.minimum(step, 3)]  # the critic's error in log-odds
    z = rng.normal(size=len(step))
    k, n = counts(z - wrong, 2, seed=7)
    calibrator = fit_calibrator(z, k, n, base_logit=0.0, step_index=step)
    error = calibrator(z, step_index=step) - sigmoid(z - wrong)
    assert np.abs(error[step < 4]).max() < 0.03
    assert abs(error[step >= 7].mean()) < 0.02
    few = fit_calibrator(z[:300], k[:300], n[:300], base_logit=0.0, step_index=np.minimum(step[:300], 1))
    assert few.position_shifts[2:] == (0.0,) * 6  # nothing is known of them


def test_rollouts_share_the_part_of_their_cluster_and_ungraded_clusters_have_none() -> None:
    tasks = {f"t{i}": make_task(f"t{i}", cluster=f"c{i // 2}") for i in range(40)}
    rollouts = [make_rollout(f"r{i}", task=f"t{i % 40}") for i in range(80)]
    rollouts += [make_rollout("lost", task="alone", reward=None, env_status="infra_error")]
    tasks["alone"] = make_task("alone", cluster="c99")
    part_of = parts_of(rollouts, tasks, fit_share=0.5, validate_share=0.25, seed=0)
    assert part_of.keys() == {f"r{i}" for i in range(80)}
    for i in range(80):
        assert part_of[f"r{i}"] == part_of[f"r{(i % 40) // 2 * 2}"]
    assert [list(part_of.values()).count(part) for part in ("fit", "validate", "calibrate")] == [40, 20, 20]
