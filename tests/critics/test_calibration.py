from __future__ import annotations

import numpy as np
import pytest

from critics.calibration import MAX_POSITION_WEIGHT, MIN_SLOPE, Calibrator, fit_calibrator, position_weights
from critics.logistic import binomial_regression, sigmoid
from critics.splits import split_clusters
from pipeline.errors import ArtifactError


def counts(z: np.ndarray, n: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(seed).binomial(n, sigmoid(z)), np.full(len(z), n)


def test_platt_undoes_a_shift_and_a_stretch_of_the_log_odds() -> None:
    z = np.random.default_rng(1).normal(size=4000)
    k, n = counts(z)
    calibrator = fit_calibrator((z - 0.7) / 2 - 0.3, k, n, base_logit=0.3)
    assert calibrator.slope == pytest.approx(2, abs=0.1)
    assert calibrator.shift == pytest.approx(0.7, abs=0.05)
    assert np.abs(calibrator((z - 0.7) / 2 - 0.3) - sigmoid(z)).max() < 0.02


def test_weights_of_three_to_one_shift_logits_by_log_three_and_platt_undoes_it() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=20_000)
    y = rng.random(20_000) < sigmoid(x)
    weight = np.where(y, 3.0, 1.0)
    X = np.stack([x, np.ones_like(x)], axis=1)
    beta = binomial_regression(X, y * weight, weight)
    assert beta[1] == pytest.approx(np.log(3), abs=0.06)
    calibrator = fit_calibrator(X @ beta, y, np.ones(20_000), base_logit=0.0)
    assert np.abs(calibrator(X @ beta) - sigmoid(x)).max() < 0.03


def test_few_states_get_a_temperature_only() -> None:
    z = np.random.default_rng(3).normal(size=150)
    k, n = counts(z, 32)
    calibrator = fit_calibrator(z / 3, k, n, base_logit=0.0)
    assert calibrator.shift == 0
    assert calibrator.slope == pytest.approx(3, abs=0.4)


def test_guided_states_shift_on_their_own_and_leave_the_bare_ones_alone() -> None:
    rng = np.random.default_rng(5)
    z = rng.normal(size=8000)
    guided = rng.random(8000) < 0.3
    k, n = counts(z - 1.5 * guided)
    both = fit_calibrator(z, k, n, base_logit=0.0, guided=guided)
    alone = fit_calibrator(z[~guided], k[~guided], n[~guided], base_logit=0.0)
    assert (both.slope, both.shift) == (alone.slope, alone.shift)
    assert both.guided_shift == pytest.approx(-1.5, abs=0.06)
    assert np.abs(both(z) - sigmoid(z)).max() < 0.02
    assert np.abs(both(z, guided=True) - sigmoid(z - 1.5)).max() < 0.02
    few = guided & (np.cumsum(guided) <= 100)
    shared = fit_calibrator(z[few | ~guided], k[few | ~guided], n[few | ~guided], base_logit=0.0,
                            guided=few[few | ~guided])  # fmt: skip
    assert shared.guided_shift == 0


def test_a_backward_critic_is_flattened_but_never_inverted() -> None:
    z = np.random.default_rng(4).normal(size=2000)
    k, n = counts(-z)
    calibrator = fit_calibrator(z, k, n, base_logit=0.0)
    assert calibrator.slope == MIN_SLOPE
    grid = calibrator(np.linspace(-20, 20, 401))
    assert (np.diff(grid) > 0).all()


def test_a_critic_that_is_silent_or_separates_perfectly_still_gets_a_finite_map() -> None:
    k, n = np.array([0, 8] * 200), np.full(400, 8)
    silent = fit_calibrator(np.zeros(400), k, n, base_logit=1.0)
    assert silent(np.zeros(3)) == pytest.approx(0.5, abs=0.01)
    separated = fit_calibrator(np.array([-1.0, 1.0] * 200), k, n, base_logit=0.0)
    assert np.isfinite([separated.slope, separated.shift]).all()


def test_the_map_is_strictly_monotone_and_shaped_like_its_input() -> None:
    calibrator = Calibrator(0.5, -1.0, 0.2)
    p = calibrator(np.linspace(-30, 30, 1000).reshape(10, 100))
    assert p.shape == (10, 100)
    assert (np.diff(p.ravel()) > 0).all()
    assert 0 < p.min() < p.max() < 1


def test_clusters_are_split_by_hash_into_the_shares_and_no_part_is_empty() -> None:
    parts = split_clusters((f"c{i}" for i in range(100)), fit_share=0.84, validate_share=0.08, seed=0)
    sizes = {part: list(parts.values()).count(part) for part in ("fit", "validate", "calibrate")}
    assert sizes == {"fit": 84, "validate": 8, "calibrate": 8}
    few = split_clusters(["a", "b", "c", "a"], fit_share=0.84, validate_share=0.08, seed=0)
    assert sorted(few.values()) == ["calibrate", "fit", "validate"]
    assert parts == split_clusters(
        (f"c{i}" for i in reversed(range(100))), fit_share=0.84, validate_share=0.08, seed=0
    )
    with pytest.raises(ArtifactError, match=r"2 clusters .*Next: tasks of more companies"):
        split_clusters(["a", "b"], fit_share=0.84, validate_share=0.08, seed=0)


def test_without_a_state_to_calibrate_on_the_next_move_is_named() -> None:
    with pytest.raises(ArtifactError, match=r"at least 1 is needed\. Next: more labels"):
        fit_calibrator(np.zeros(0), np.zeros(0), np.zeros(0), base_logit=0.0)


def test_positions_count_as_often_as_they_are_played():
    played = np.repeat([0, 1, 2, 3], [400, 400, 300, 100])
    labelled = np.repeat([0, 1, 3], [400, 100, 50])
    samples = np.where(labelled == 1, 2, 1)
    weights = position_weights(labelled, samples, played) * samples
    shares = np.bincount(labelled, weights=weights) / weights.sum()
    # Nobody labelled position 2, so the others keep their proportions.
    assert shares == pytest.approx(np.array([400, 400, 0, 100]) / 900)


def test_few_late_labels_count_together_and_none_counts_without_bound():
    played = np.repeat(np.arange(8), 100)
    labelled = np.concatenate([np.repeat([0, 1], 200), np.arange(2, 8)])
    weights = position_weights(labelled, np.ones(len(labelled)), played)
    assert set(weights[labelled >= 1]) == {weights[-1]}
    rare = position_weights(np.repeat([0, 1], [10_000, 40]), np.ones(10_040), np.repeat([0, 1], 5000))
    assert rare.max() == MAX_POSITION_WEIGHT


def test_weighting_by_position_removes_the_bias_of_crowded_labels():
    """The critic is right late and wrong early; labels crowd early, rollouts do not."""
    rng = np.random.default_rng(0)
    step = np.repeat([0, 1], [8000, 2000])
    z = rng.normal(0, 1.5, len(step))
    k = rng.random(len(step)) < 1 / (1 + np.exp(-(z - np.where(step == 0, 1.0, 0.0))))
    played = np.repeat([0, 1], 5000)
    truth_step = np.repeat([0, 1], 5000)
    z_new = rng.normal(0, 1.5, 10_000)
    truth = 1 / (1 + np.exp(-(z_new - np.where(truth_step == 0, 1.0, 0.0))))

    def bias(weight):
        return (fit_calibrator(z, k * weight, weight, base_logit=0.0)(z_new) - truth).mean()

    crowded, even = bias(np.ones(len(step))), bias(position_weights(step, np.ones(len(step)), played))
    assert crowded < -0.03
    assert abs(even) < 0.01
