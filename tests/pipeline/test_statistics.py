import math

import numpy as np
import pytest

from pipeline.statistics import ClusterBootstrap, Interval, interval_of_draws, wilson


def test_clustered_interval_has_the_width_of_independent_clusters_not_rows() -> None:
    """40 clusters of 25 equal rows: the standard error is that of 40 numbers."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=40)
    rows, clusters = np.repeat(means, 25), np.repeat(np.arange(40), 25)
    interval = ClusterBootstrap(clusters, num_resamples=4000).mean(rows)
    standard_error = means.std() / math.sqrt(40)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * standard_error, rel=0.08)
    naive = ClusterBootstrap(np.arange(1000)).mean(rows)
    assert naive.high - naive.low < 0.3 * (interval.high - interval.low)


def test_bounds_lie_on_the_resample_outside_of_the_level_that_is_asked_for() -> None:
    draws = np.arange(101.0)
    assert interval_of_draws(50.0, draws, level=0.91) == Interval(50.0, 4.0, 96.0)
    assert interval_of_draws(50.0, np.array([np.nan, *draws[1:]]), level=0.99).low == -np.inf


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(300):
        effects = rng.normal(size=30)
        sizes = rng.integers(1, 6, size=30)
        clusters = np.repeat(np.arange(30), sizes)
        rows = effects[clusters] + rng.normal(size=len(clusters))
        interval = ClusterBootstrap(clusters, num_resamples=300, seed=trial).mean(rows)
        covered += interval.low <= 0 <= interval.high
    assert 0.88 <= covered / 300 <= 0.98


def test_sums_of_clusters_and_weights_of_rows_give_the_same_interval() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.random(60), rng.random(60) + 0.5
    clusters = [f"cluster {i % 12}" for i in range(60)]
    boot, other = (ClusterBootstrap(clusters, num_resamples=500, seed=seed) for seed in (3, 4))
    sums = boot.ratio(x, y)
    assert sums == boot.ratio(x, y) != other.ratio(x, y)
    [weights] = boot.weighted(lambda w: (w @ x / (w @ y))[:, None])
    assert (sums.value, sums.low, sums.high) == pytest.approx((weights.value, weights.low, weights.high))
    assert boot.ratio(x[:30], y[:30], np.arange(30)).value == pytest.approx(x[:30].sum() / y[:30].sum())


def test_one_cluster_gives_no_bounds_and_nothing_is_undefined() -> None:
    interval = ClusterBootstrap(["a", "a"]).mean(np.array([0.0, 1.0]))
    assert interval.value == 0.5
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert not interval.excludes(7.0)
    assert math.isnan(ClusterBootstrap([]).mean(np.array([])).value)


def test_undefined_resamples_widen_the_interval() -> None:
    # The ratio is defined only if cluster 0 is drawn: 1/e of the resamples are undefined.
    only_first = (np.arange(20) == 0).astype(float)
    interval = ClusterBootstrap(np.arange(20), num_resamples=200).ratio(only_first, only_first)
    assert (interval.value, interval.low, interval.high) == (1.0, -math.inf, math.inf)


def test_count_intervals_stay_inside_and_reach_the_ends() -> None:
    none, all_ = wilson(0, 20), wilson(20, 20)
    assert none.low == 0.0 < none.high < 0.25
    assert all_.high == 1.0 > all_.low > 0.75
