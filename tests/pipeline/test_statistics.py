from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.statistics import (
    clopper_pearson,
    cluster_bootstrap,
    clustered_mean,
    clustered_ratio,
    paired_difference,
    wilson,
)


def test_clustered_interval_has_the_width_of_independent_clusters_not_rows() -> None:
    """40 clusters of 25 equal rows: the standard error is that of 40 numbers."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=40)
    rows, clusters = np.repeat(means, 25), np.repeat(np.arange(40), 25)
    interval = clustered_mean(rows, clusters, num_resamples=4000)
    standard_error = means.std() / math.sqrt(40)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * standard_error, rel=0.08)
    naive = clustered_mean(rows, np.arange(1000), num_resamples=1000)
    assert naive.high - naive.low < 0.3 * (interval.high - interval.low)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(300):
        effects = rng.normal(size=30)
        sizes = rng.integers(1, 6, size=30)
        clusters = np.repeat(np.arange(30), sizes)
        rows = effects[clusters] + rng.normal(size=len(clusters))
        interval = clustered_mean(rows, clusters, num_resamples=300, seed=trial)
        covered += interval.low <= 0 <= interval.high
    assert 0.88 <= covered / 300 <= 0.98


def test_vectorised_and_general_bootstrap_agree() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.random(60), rng.random(60) + 0.5
    clusters = [f"company {i % 12}" for i in range(60)]
    general = cluster_bootstrap(lambda i: x[i].sum() / y[i].sum(), clusters, num_resamples=500, seed=3)
    fast = clustered_ratio(x, y, clusters, num_resamples=500, seed=3)
    assert (general.value, general.low, general.high) == pytest.approx((fast.value, fast.low, fast.high))


def test_pairing_removes_what_both_share() -> None:
    rng = np.random.default_rng(4)
    difficulty = rng.random(200)
    ours, theirs = difficulty + 0.05 + 0.01 * rng.normal(size=200), difficulty
    paired = paired_difference(ours, theirs, np.arange(200) // 4)
    assert paired.value == pytest.approx(0.05, abs=0.005)
    assert paired.excludes(0.0)
    assert paired.high - paired.low < 0.01


def test_one_cluster_gives_no_bounds() -> None:
    interval = clustered_mean(np.array([0.0, 1.0]), ["a", "a"])
    assert interval.value == 0.5
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert not interval.excludes(7.0)


def test_undefined_resamples_widen_the_interval() -> None:
    # The statistic is defined only if cluster 0 is drawn: 1/e of the resamples are undefined.
    clusters = np.arange(20)
    interval = cluster_bootstrap(lambda i: 1.0 if 0 in i else math.nan, clusters, num_resamples=200)
    assert interval.value == 1.0
    assert interval.low == -math.inf
    assert interval.high == math.inf


def test_equal_seeds_give_equal_intervals() -> None:
    numbers, clusters = np.random.default_rng(5).random(50), np.arange(50) // 5
    assert clustered_mean(numbers, clusters, seed=1) == clustered_mean(numbers, clusters, seed=1)
    assert clustered_mean(numbers, clusters, seed=1) != clustered_mean(numbers, clusters, seed=2)


@pytest.mark.parametrize("interval", [wilson, clopper_pearson])
def test_count_intervals_stay_inside_and_reach_the_ends(interval) -> None:  # type: ignore[no-untyped-def]
    none, all_ = interval(0, 20), interval(20, 20)
    assert none.low == 0.0 < none.high < 0.25
    assert all_.high == 1.0 > all_.low > 0.75
    with pytest.raises(ValueError, match="3 successes of 2 trials"):
        interval(3, 2)


def test_clopper_pearson_covers_at_every_rate() -> None:
    n = 12
    intervals = [clopper_pearson(k, n) for k in range(n + 1)]
    for p in np.linspace(0.01, 0.99, 50):
        coverage = sum(
            math.comb(n, k) * p**k * (1 - p) ** (n - k)
            for k, i in enumerate(intervals)
            if i.low <= p <= i.high
        )
        assert coverage >= 0.95


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        clustered_mean(np.array([]), [])
    with pytest.raises(ValueError, match="2 numerators"):
        clustered_ratio(np.ones(2), np.ones(3), ["a", "b", "c"])
