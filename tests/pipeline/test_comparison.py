"""A comparison's statistics recover what is known."""

import numpy as np
import pytest
from scipy.stats import norm, ttest_1samp
from sklearn.isotonic import IsotonicRegression

from pipeline.comparison import (
    Compared,
    Curve,
    compared,
    cost_to,
    mean_success,
    ratio_bounds,
    rising,
    spread_over_training,
    success_at,
)
from pipeline.few_seeds import holm, p_value, student_p
from pipeline.statistics import interval_dict

COSTS = np.linspace(0, 1000, 11)


def curve(rng: np.random.Generator, speed: float, num_clusters: int = 100) -> Curve:
    """A run that rises linearly from .1 by `speed` points a cost of 1, on clusters of two tasks."""
    chance = np.clip(0.1 + speed * COSTS, 0, 0.95)
    skill = rng.normal(0, 0.1, num_clusters)  # what the tasks of a cluster share
    won = rng.binomial(2, np.clip(chance[:, None] + skill, 0, 1))
    return Curve(COSTS, won.astype(float), np.full((len(COSTS), num_clusters), 2.0))


def arm(rng: np.random.Generator, speed: float, seeds: int, spread: float = 0.1) -> list[Curve]:
    return [curve(rng, speed * np.exp(rng.normal(0, spread))) for _ in range(seeds)]


def test_success_is_interpolated_jumps_at_an_overhead_and_is_unknown_before_the_first_look() -> None:
    costs, success = np.array([4.0, 8.0, 8.0, 12.0]), np.array([[0.1, 0.2, 0.6, 0.8]])
    at = success_at(np.array([3.9, 4.0, 6.0, 7.999, 8.0, 10.0, 99.0]), costs, success)[0]
    assert np.isnan(at[0])
    assert at[1:] == pytest.approx([0.1, 0.15, 0.2, 0.6, 0.7, 0.8], abs=1e-4)


def test_a_curve_that_never_falls_is_that_of_scikit_learn() -> None:
    success = np.random.default_rng(0).uniform(size=(50, 9))
    mine = rising(success)
    for row, wanted in zip(mine, success, strict=True):
        assert row == pytest.approx(IsotonicRegression().fit_transform(np.arange(9), wanted))


def test_a_threshold_is_reached_where_the_curve_without_its_noise_crosses_it() -> None:
    """One lucky look is no success: the raw curve is above .4 from the second look on."""
    noisy = np.array([[0.1, 0.45, 0.15, 0.3, 0.5, 0.6]])
    assert cost_to(0.4, np.arange(6) * 10.0, noisy)[0] == pytest.approx(35)
    assert cost_to(0.05, np.arange(6) * 10.0 + 7, noisy)[0] == 7
    assert cost_to(0.61, np.arange(6) * 10.0, noisy)[0] == np.inf


def test_costs_to_a_threshold_are_recovered_in_spite_of_noise() -> None:
    rng, truth = np.random.default_rng(1), 600.0
    found = [cost_to(0.4, COSTS, curve(rng, 0.3 / truth).success(np.ones((1, 100))))[0] for _ in range(200)]
    assert np.median(found) == pytest.approx(truth, rel=0.05)


def test_a_censored_run_bounds_the_ratio_and_is_never_left_out() -> None:
    inf, spent = np.inf, np.full((3, 2), 100.0)
    assert ratio_bounds(np.array([[10, 40], [20, 60], [30, 90]]), spent) == (3, 3)
    assert ratio_bounds(np.array([[10, 40], [20, inf], [30, inf]]), spent) == (5, inf)  # at least 5
    assert ratio_bounds(np.array([[inf, 40], [inf, 60], [30, 90]]), spent) == (0, 0.6)  # at most .6
    assert ratio_bounds(np.array([[inf, inf], [inf, inf], [30, 90]]), spent) == (0, inf)  # unknown


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.comparison.NUM_RESAMPLES", 300)


@pytest.mark.usefixtures("few_resamples")
def test_a_known_difference_and_a_known_ratio_are_covered() -> None:
    """Speeds 3 to 1: at 300 success differs by .18, and .3 is reached at 222 and 667."""
    rng, covered = np.random.default_rng(2), []
    for trial in range(40):
        first, second = arm(rng, 0.0009, 10), arm(rng, 0.0003, 10)
        found = compared(first, second, budget=300, threshold=0.3, seed=trial)
        covered.append((not found.difference.excludes(0.18), not found.ratio.excludes(3.0)))
        assert found.difference_p < 0.05
        assert found.ratio_p < 0.05
        assert found.ratio_at_least <= found.ratio_at_most
    assert np.mean(covered, axis=0) == pytest.approx([0.95, 0.95], abs=0.1)


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize(
    ("seeds", "is_stretched", "most"), [(4, True, 0.01), (4, False, 0.14), (8, True, 0.01)]
)
def test_arms_that_are_alike_are_seldom_told_apart(
    monkeypatch: pytest.MonkeyPatch, seeds: int, is_stretched: bool, most: float
) -> None:
    """However few seeds; percentiles alone tell 14 in 100 of four apart (decision 0051)."""
    if not is_stretched:
        monkeypatch.setattr("pipeline.few_seeds.stretch", lambda num_seeds: 1.0)
    rng, told = np.random.default_rng(3), []
    for trial in range(100):
        first, second = arm(rng, 0.0004, seeds, 0.3), arm(rng, 0.0004, seeds, 0.3)
        found = compared(first, second, budget=500, threshold=0.3, seed=trial)
        told.append((found.difference.excludes(0), found.ratio.excludes(1)))
        assert not is_stretched or max(told[-1]) == (min(found.difference_p, found.ratio_p) < 0.05)
    assert np.mean(told, axis=0).max() == pytest.approx(most)


def looked_at(success: float) -> Curve:
    """A run whose tasks are one cluster, so that seeds alone vary."""
    return Curve(np.array([0.0, 10.0]), np.full((2, 1), success), np.ones((2, 1)))


@pytest.mark.parametrize("seeds", [2, 5])
def test_p_and_interval_of_few_seeds_are_those_of_a_paired_t_test(seeds: int) -> None:
    """Resamples of five that agree all lie on one side, and say .001 of what is .01."""
    gains = np.random.default_rng(6).normal(0.08, 0.03, seeds)
    first, second = [looked_at(0.5 + gain) for gain in gains], [looked_at(0.5)] * seeds
    found = compared(first, second, budget=10, threshold=0.9, seed=0)
    wanted = ttest_1samp(gains, 0)
    assert found.difference_p == pytest.approx(wanted.pvalue, rel=0.1)
    bounds = wanted.confidence_interval()
    assert found.difference.low == pytest.approx(bounds.low, abs=0.015)
    assert found.difference.high == pytest.approx(bounds.high, abs=0.015)


def test_bounds_of_one_seed_are_those_of_its_clusters() -> None:
    """Of 200 tasks that succeed or fail, half of them; in pairs of arms that share none of their luck."""
    rng = np.random.default_rng(7)
    first, second = (
        [Curve(np.array([0.0, 10.0]), np.tile(rng.permutation(200) < 100, (2, 1)) * 1.0, np.ones((2, 200)))]
        for _ in range(2)
    )
    alone = mean_success(first, np.array([10.0]))[0]
    width = 2 * norm.ppf(0.975) * np.sqrt(0.25 / 200)
    assert alone.high - alone.low == pytest.approx(width, rel=0.1)
    found = compared(first, second, budget=10, threshold=0.9, seed=0)
    gains = first[0].won[1] - second[0].won[1]
    width = 2 * norm.ppf(0.975) * gains.std() / np.sqrt(200)
    assert found.difference.high - found.difference.low == pytest.approx(width, rel=0.1)


def test_p_of_one_seed_is_that_of_a_normal_distribution() -> None:
    draws = np.random.default_rng(8).normal(0.1, 0.05, 4000)
    assert student_p(0.1, draws, 1) == pytest.approx(2 * norm.sf(0.1 / draws.std()))
    assert student_p(0.1, draws, 2) > 0.3  # Student's, of one degree of freedom


def test_two_seeds_that_agree_to_the_task_are_not_sure() -> None:
    agreeing = 0.4075 - np.array([0.405, 0.405, 0.4050000000000001])
    assert student_p(0.0025, agreeing, 2) == 1.0


def test_bounds_of_a_rate_stay_within_it_and_those_of_other_returns_need_not() -> None:
    high = mean_success([looked_at(0.9), looked_at(0.99)], np.array([10.0]))[0]
    assert (high.low > 0, high.high) == (True, 1.0)
    prices = mean_success([looked_at(-0.1), looked_at(-0.01)], np.array([10.0]))[0]
    assert prices.low < -0.5 < 0.2 < prices.high


def test_bounds_of_a_difference_of_rates_stay_within_one_and_leave_p_alone() -> None:
    def found(scale: float) -> Compared:
        first, second = ([looked_at(scale * x) for x in of] for of in ((0.9, 0.3), (0.2, 0.2)))
        return compared(first, second, budget=10, threshold=0.5, seed=0)

    rates, prices = found(1.0), found(-1.0)
    assert (rates.difference.low, rates.difference.high) == (-1.0, 1.0)
    assert prices.difference.low < -1 < 1 < prices.difference.high
    assert rates.difference_p == pytest.approx(prices.difference_p)


def test_where_nothing_varies_there_are_no_bounds_and_no_p() -> None:
    found = compared([looked_at(0.9)], [looked_at(0.5)], budget=10, threshold=0.4, seed=0)
    assert (found.difference.value, found.difference_p, found.ratio_p) == (pytest.approx(0.4), 1.0, 1.0)
    assert interval_dict(found.difference)["low"] is None
    assert interval_dict(mean_success([looked_at(0.9)], np.array([10.0]))[0])["high"] is None


def test_what_two_arms_share_by_seed_drops_out_of_their_difference() -> None:
    """Seeds differ by tens of points, arms of one seed by five: unpaired, nobody would see it."""
    rng = np.random.default_rng(4)
    levels = rng.uniform(0.2, 0.6, 8)
    tried = np.full((2, 200), 5.0)

    def run(level: float) -> Curve:
        return Curve(np.array([0.0, 10.0]), np.full((2, 200), 5 * level), tried)

    first, second = [run(level + 0.05) for level in levels], [run(level) for level in levels]
    found = compared(first, second, budget=10, threshold=0.9, seed=0)
    assert found.difference.low == pytest.approx(0.05)
    assert found.difference.high == pytest.approx(0.05)
    assert (found.ratio_at_least, found.ratio_at_most, found.ratio_p) == (0, np.inf, 1.0)
    alone = mean_success(second, np.array([10.0]))[0]
    assert alone.high - alone.low > 0.1
    assert alone.value == pytest.approx(levels.mean())


def test_p_counts_what_is_not_surely_on_one_side_on_both() -> None:
    sure, unsure = np.full(99, 2.0), np.full(99, 0.5)
    assert p_value(sure, sure, 1.0) == pytest.approx(0.02)
    assert p_value(unsure, sure, 1.0) == 1.0


def test_holm_multiplies_the_smallest_by_their_number_and_keeps_the_order() -> None:
    assert holm([0.005, 0.01, 0.02, 0.03, 0.5]) == pytest.approx([0.025, 0.04, 0.06, 0.06, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_spread_over_training_is_that_around_the_trend() -> None:
    rng = np.random.default_rng(5)
    series = np.linspace(0, 10, 2000) + rng.normal(0, 0.3, 2000)
    assert spread_over_training(series) == pytest.approx(0.3, rel=0.05)
    assert np.isnan(spread_over_training([0.1]))
