"""Our estimators against scikit-learn's, where it has one: it counts samples, ours count states."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

from critics.audit.data import AuditData
from critics.audit.measures import measure
from critics.frozen.calibrator import isotonic
from critics.logit import binomial_regression


def one_row_a_sample(audit: AuditData) -> tuple[np.ndarray, np.ndarray]:
    """Returns outcomes and predictions of single samples."""
    outcomes = np.concatenate([np.repeat([1, 0], [k, K - k]) for k, K in zip(audit.k, audit.K, strict=True)])
    return outcomes, np.repeat(audit.p, audit.K)


def test_scores_of_single_samples(make_audit: Callable[..., tuple[AuditData, np.ndarray]]) -> None:
    audit, _ = make_audit(lambda V, rng: np.round(V + rng.normal(0, 0.1, V.shape), 2), num_rollouts=60, K=8)
    found = measure(audit, num_resamples=100)
    outcomes, p = one_row_a_sample(audit)
    assert found["auroc"].value == pytest.approx(roc_auc_score(outcomes, p))
    assert found["auprc"].value == pytest.approx(average_precision_score(outcomes, p))
    assert found["brier"].value == pytest.approx(brier_score_loss(outcomes, p))
    assert found["nll"].value == pytest.approx(log_loss(outcomes, p), rel=1e-4)


def test_logistic_regression_on_counts() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=200), rng.normal(size=200), np.ones(200)], axis=1)
    n = rng.integers(1, 9, size=200)
    k = rng.binomial(n, 1 / (1 + np.exp(-(X @ [0.8, -0.5, 0.3]))))
    ridge = 2.0
    reference = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-10, max_iter=1000)
    twice = np.concatenate([X, X])
    reference.fit(twice, np.repeat([1, 0], 200), sample_weight=np.concatenate([k, n - k]))
    assert binomial_regression(X, k, n, ridge=ridge) == pytest.approx(reference.coef_[0], abs=1e-5)


def test_the_best_curve_that_never_falls() -> None:
    rng = np.random.default_rng(1)
    p = rng.random(300).round(2)  # with ties
    weights = rng.integers(2, 9, size=300)
    v_hat = rng.binomial(weights, np.sqrt(p)) / weights
    plateaus = isotonic(p, v_hat, weights)
    lows, highs, values = (np.array(column) for column in zip(*plateaus, strict=True))
    assert (lows <= highs).all()
    assert (highs[:-1] < lows[1:]).all()
    assert (np.diff(values) > 0).all()
    ours = values[np.searchsorted(highs, p)]
    reference = IsotonicRegression().fit(p, v_hat, sample_weight=weights)
    assert ours == pytest.approx(reference.predict(p))
