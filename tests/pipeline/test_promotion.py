"""The decision rule: posteriors against their closed form, verdicts at their borders, error rates."""

import re
from math import comb, exp, lgamma
from pathlib import Path

import numpy as np
import pytest

from pipeline.promotion import (
    LOOK,
    LOOKS,
    MIN_ROLLOUTS,
    SIMULATIONS,
    Arm,
    Verdict,
    decide,
    probability_below,
    simulated_rates,
    verdicts,
)

CODES: dict[Verdict, int] = {"promote": 1, "roll_back": -1, "continue": 0}
PAGE = (Path(__file__).parents[2] / "docs" / "rounds.md").read_text("utf-8")


def log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def exactly_better(arm: Arm, other: Arm) -> float:
    """P(p > p_other), summed over the successes of the arm: Beta integrals with whole numbers."""
    a, b = 1 + other.rewards, 1 + other.rollouts - other.rewards
    own_a, own_b = 1 + int(arm.rewards), 1 + arm.rollouts - arm.rewards
    return sum(
        exp(log_beta(a + i, b + own_b) - log_beta(1 + i, own_b) - log_beta(a, b)) / (own_b + i)
        for i in range(own_a)
    )


@pytest.mark.parametrize(
    ("arm", "other"),
    [
        (Arm(0, 0), Arm(0, 0)),
        (Arm(0, 100), Arm(0, 400)),
        (Arm(100, 100), Arm(400, 400)),
        (Arm(1, 100), Arm(17, 400)),
        (Arm(70, 100), Arm(280, 400)),
        (Arm(61, 100), Arm(300, 400)),
        (Arm(1400, 2000), Arm(5500, 8000)),
    ],
)
def test_the_probability_is_the_closed_form_of_two_beta_posteriors(arm: Arm, other: Arm) -> None:
    assert 1 - probability_below(arm, other) == pytest.approx(exactly_better(arm, other), abs=1e-4)
    assert probability_below(arm, other) + probability_below(other, arm) == pytest.approx(1, abs=1e-6)


def test_a_share_of_the_other_rate_is_what_draws_of_both_posteriors_say() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.beta(1 + 65, 1 + 35, 400_000), rng.beta(1 + 290, 1 + 110, 400_000)
    expected = np.mean(p < 0.95 * q)
    assert probability_below(Arm(65, 100), Arm(290, 400), 0.95) == pytest.approx(expected, abs=0.003)


def test_graded_rewards_count_as_shares_of_a_success() -> None:
    low, between, high = (1 - probability_below(Arm(s, 100), Arm(280, 400)) for s in (70, 70.5, 71))
    assert low < between < high


@pytest.mark.parametrize("share", [0, 0.01, 0.2, 0.5, 0.7, 0.99, 1])
def test_a_tie_decides_nothing(share: float) -> None:
    for looks in range(1, LOOKS + 1):
        candidate, baseline = looks * MIN_ROLLOUTS, looks * (LOOK - MIN_ROLLOUTS)
        assert (
            decide(Arm(share * candidate, candidate), Arm(share * baseline, baseline)).verdict == "continue"
        )


def test_more_successes_never_make_a_verdict_worse() -> None:
    table = verdicts(100, 400)
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) <= 0).all()
    assert set(np.unique(table)) == {-1, 0, 1}
    names = {code: name for name, code in CODES.items()}
    for new, old in ((70, 280), (78, 280), (79, 280), (80, 280), (59, 280), (58, 280), (0, 0), (100, 400)):
        assert decide(Arm(new, 100), Arm(old, 400)).verdict == names[int(table[new, old])]


def binomial(n: int, p: float) -> np.ndarray:
    return np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def exact_rates(candidate: float, baseline: float) -> dict[Verdict, float]:
    """The chance of each pair of successes at each look, of what was undecided at the one before."""
    found: dict[Verdict, float] = {"promote": 0.0, "roll_back": 0.0, "continue": 0.0}
    open_still = np.ones((1, 1))
    for look in range(1, LOOKS + 1):
        for axis, chances in enumerate((binomial(100, candidate), binomial(400, baseline))):
            open_still = np.apply_along_axis(np.convolve, axis, open_still, chances)
        table = verdicts(100 * look, 400 * look)
        found["promote"] += open_still[table == 1].sum()
        found["roll_back"] += open_still[table == -1].sum()
        open_still[table != 0] = 0
    return found | {"continue": open_still.sum()}


@pytest.mark.parametrize(("candidate", "baseline"), [(0.7, 0.7), (0.83, 0.7), (0.57, 0.7), (0.1, 0.1)])
def test_simulated_rates_are_the_exact_ones(candidate: float, baseline: float) -> None:
    exact, found = exact_rates(candidate, baseline), simulated_rates(candidate, baseline)
    assert sum(found.values()) == pytest.approx(1)
    for verdict, rate in exact.items():
        assert found[verdict] == pytest.approx(rate, abs=4 * (rate * (1 - rate) / SIMULATIONS) ** 0.5 + 1e-9)


def test_the_page_says_what_the_simulation_says() -> None:
    rows = re.findall(r"^\| ([+-]\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 8
    for difference, *cells in rows:
        found = simulated_rates(0.7 + int(difference) / 100, 0.7)
        rates = [100 * found["promote"], 100 * found["roll_back"]]
        assert [float(cell) for cell in cells] == pytest.approx(rates, abs=0.051)
    for words, rate in (
        ("7.4 % of rounds", 0.7),
        ("10.4 % where the baseline succeeds in 2 %", 0.02),
        ("5.7 % where in 95 %", 0.95),
    ):
        assert words in PAGE
        said = float(words.split(" %")[0])
        assert 100 * simulated_rates(rate, rate)["promote"] == pytest.approx(said, abs=0.051)
    assert f"{1000 * simulated_rates(0.65, 0.7)['promote']:.0f} of 1,000 rounds" in PAGE


def test_the_page_says_what_few_clusters_do() -> None:
    """A candidate that differs by +-15 points from cluster to cluster, 0 on average, on tasks of 20."""
    rng, found = np.random.default_rng(0), np.zeros(SIMULATIONS)
    rates = rng.normal(0.7, 0.15 / 20**0.5, SIMULATIONS)
    won = np.cumsum(rng.binomial(100, rates, (2, SIMULATIONS)), axis=0)
    won_by_baseline = np.cumsum(rng.binomial(400, 0.7, (2, SIMULATIONS)), axis=0)
    for look in (0, 1):
        said = verdicts(100 * (look + 1), 400 * (look + 1))[won[look], won_by_baseline[look]]
        found = np.where(found == 0, said, found)
    assert "promoted in 14 % at 20 clusters" in PAGE
    assert np.mean(found == 1) == pytest.approx(0.14, abs=0.005)


def test_what_nobody_could_grade_counts_against_either_verdict() -> None:
    """Each bound holds whatever the ungraded rollouts of either arm would have been."""
    assert decide(Arm(99, 99, 1), Arm(200, 400)).verdict == "promote"
    assert decide(Arm(0, 99, 1), Arm(200, 400)).verdict == "roll_back"
    candidate, baseline = Arm(60, 80, 20), Arm(260, 380, 20)
    found = decide(candidate, baseline)
    would_be = [
        decide(Arm(60 + new, 100), Arm(260 + old, 400)) for new in range(0, 21, 5) for old in range(0, 21, 5)
    ]
    assert found.better == min(each.better for each in would_be)
    assert found.worse == min(each.worse for each in would_be)


def test_a_candidate_wins_nothing_by_rollouts_that_nobody_can_grade_and_an_outage_refuses_none() -> None:
    baseline = Arm(608, 800)
    assert decide(Arm(148, 180), baseline).verdict == "promote"
    assert decide(Arm(148, 180, 20), baseline).verdict == "continue"
    assert decide(Arm(20, 80, 120), baseline).verdict == "continue"
    assert decide(Arm(0, 0, 100), Arm(0, 0, 400)).verdict == "continue"
