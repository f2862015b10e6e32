"""A comparison's report and page say what its tables say."""

from typing import Any

import numpy as np
import pytest

from pipeline.report.comparison import MEASURES, comparison_report, curves_of
from pipeline.report.comparison_page import claims_of, comparison_page

SEEDS = range(4)
TASKS = [f"task{i}" for i in range(400)]
CLUSTERS = [f"cluster{i // 2}" for i in range(400)]


def look(
    arm: str, seed: int, iteration: int, cost: float, success: float, values: float = 0.0
) -> dict[str, Any]:
    """A look at which exactly this share succeeds, the same tasks in all arms."""
    rewards = [float(i < round(400 * success)) for i in range(400)]
    costs = {"rollouts": cost, "tokens": 10 * cost, "seconds": cost / 10}
    costs["amortised_rollouts"] = cost - values
    row = {"arm": arm, "seed": seed, "iteration": iteration, "success": success, **costs}
    row["training_return"] = success if iteration > 0 else None
    return row | {"task_ids": TASKS, "clusters": CLUSTERS, "rewards": rewards}


def paid(arm: str, seed: int, stage: str, rollouts: float) -> dict[str, Any]:
    costs = {"rollouts": rollouts, "tokens": 10 * rollouts, "seconds": rollouts / 10}
    return {"arm": arm, "seed": seed, "stage": stage, **costs}


def tables() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`ours` pays 400 first, half of it for values, and then learns three times as fast as `theirs`."""
    rows, spending = [], []
    for seed in SEEDS:
        for arm, first, step, gain in (("ours", 400, 100, 0.15), ("theirs", 0, 200, 0.1)):
            values = 200.0 if first else 0.0
            rows.append(look(arm, seed, -1, 0, 0.1))
            for n in range(6):
                success = 0.1 + n * gain + 0.01 * (seed % 2)
                rows.append(look(arm, seed, n, first + n * step, success, values))
            spending.append(paid(arm, seed, "actor", 5 * step))
            spending += [paid(arm, seed, "rollouts", first)] * bool(first)
    return rows, spending


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    rows, spending = tables()
    return comparison_report(rows, spending, method="ours", threshold=0.5, failed={})


def test_success_and_costs_are_those_of_the_tables(report: dict[str, Any]) -> None:
    by_rollouts = report["measures"]["rollouts"]
    assert by_rollouts["budget"] == 900  # the least that an arm spent
    ours, theirs = by_rollouts["arms"]["ours"], by_rollouts["arms"]["theirs"]
    assert ours["success_at_budget"]["value"] == pytest.approx(0.855, abs=0.002)
    assert theirs["success_at_budget"]["value"] == pytest.approx(0.555, abs=0.002)
    assert ours["cost_of_each"]["0"] == pytest.approx(400 + 100 * 8 / 3, abs=2)  # .5 = .1 + .15 n
    assert theirs["cost_of_each"]["0"] == pytest.approx(800, abs=2)
    assert report["measures"]["tokens"]["arms"]["ours"]["spent"] == 9000
    assert report["arms"]["ours"]["spending"]["rollouts"]["rollouts"] == 400
    assert report["arms"]["ours"]["spread_over_seeds"] == pytest.approx(0.0058, abs=1e-3)
    assert report["tasks_of_a_look"] == 400


def test_values_cost_nothing_where_the_critic_is_amortised(report: dict[str, Any]) -> None:
    full, amortised = (
        report["measures"][name]["arms"]["ours"] for name in ("rollouts", "amortised_rollouts")
    )
    assert (full["spent"], amortised["spent"]) == (900, 700)
    assert full["cost_to_threshold"] - amortised["cost_to_threshold"] == pytest.approx(200)


def test_a_claim_has_a_difference_and_a_ratio_with_intervals(report: dict[str, Any]) -> None:
    [claim] = report["measures"]["rollouts"]["claims"]
    assert claim["against"] == "theirs"
    assert claim["seeds"] == list(SEEDS)
    assert claim["difference"]["value"] == pytest.approx(0.3, abs=0.002)
    assert claim["difference"]["low"] > 0.2
    assert claim["ratio"]["value"] == pytest.approx(1.2, abs=0.02)
    assert claim["ratio"]["low"] <= 1.2 <= claim["ratio"]["high"]
    [line] = claims_of(report, "rollouts")
    assert line.startswith("ours against theirs, 4 seeds: +30.0 points [")
    assert "theirs takes 1.19 times [1." in line


def test_the_starting_policy_is_held_until_the_actor_begins() -> None:
    rows, spending = tables()
    curve = curves_of(rows, spending, "rollouts")["ours"][0]
    assert curve.costs.tolist() == [0, 400, 400, 500, 600, 700, 800, 900]
    assert curve.observed[0, :3] == pytest.approx([0.1, 0.1, 0.1])


def test_a_refused_run_keeps_its_start_and_counts_as_more_than_it_spent() -> None:
    rows, spending = tables()
    rows = [row for row in rows if row["arm"] != "ours" or row["seed"] or row["iteration"] < 0]
    spending = [row for row in spending if (row["arm"], row["seed"], row["stage"]) != ("ours", 0, "actor")]
    why = {("ours", 0): "the critic's gate failed"}
    report = comparison_report(rows, spending, method="ours", threshold=0.5, failed=why)
    ours = report["measures"]["rollouts"]["arms"]["ours"]
    assert report["measures"]["rollouts"]["budget"] == 900  # of runs that came to their end
    assert ours["cost_of_each"]["0"] is None
    assert curves_of(rows, spending, "rollouts")["ours"][0].costs.tolist() == [0, 400]
    assert ours["success_at_budget"]["value"] == pytest.approx((0.1 + 0.86 + 0.85 + 0.86) / 4, abs=0.002)
    page = comparison_page("r", report)
    assert "1 run came to no end: ours-seed0." in page
    assert "the critic&#39;s gate failed" in page


def test_a_refused_run_that_nobody_looked_at_is_named_as_in_no_figure() -> None:
    rows, spending = tables()
    rows = [row for row in rows if row["arm"] != "ours" or row["seed"]]
    report = comparison_report(rows, spending, method="ours", threshold=0.5, failed={("ours", 0): "refused"})
    assert report["left_out"] == ["ours-seed0"]
    assert "No figure has ours-seed0" in comparison_page("r", report)


def test_one_seed_has_bounds_over_tasks_and_no_p() -> None:
    rows, spending = ([row for row in of if row["seed"] == 0] for of in tables())
    report = comparison_report(rows, spending, method="ours", threshold=0.5, failed={})
    [line] = claims_of(report, "rollouts")
    assert line.startswith("ours against theirs, 1 seed: ")
    assert line.count("(p unknown of one seed)") == 2
    [claim] = report["measures"]["rollouts"]["claims"]
    for figure in (claim["difference"], claim["ratio"]):
        assert figure["low"] < figure["value"] < figure["high"]


def test_an_arm_that_never_reaches_the_threshold_bounds_the_ratio() -> None:
    rows, spending = tables()
    rows = [row for row in rows if row["arm"] == "ours" or row["iteration"] <= 2]
    report = comparison_report(rows, spending, method="ours", threshold=0.5, failed={})
    [claim] = report["measures"]["rollouts"]["claims"]
    assert claim["ratio"]["value"] is None
    assert claim["ratio"]["at_least"] == pytest.approx(1000 / 667, abs=0.03)
    assert claim["ratio"]["high"] is None
    assert "theirs takes at least 1.5" in claims_of(report, "rollouts")[0]
    other_way = comparison_report(rows, spending, method="theirs", threshold=0.5, failed={})
    assert "ours takes at most 0.6" in claims_of(other_way, "rollouts")[0]
    theirs = report["measures"]["rollouts"]["arms"]["theirs"]
    assert (theirs["cost_to_threshold"], theirs["cost_at_least"]) == (None, 1000)
    hopeless = comparison_report(rows, spending, method="theirs", threshold=0.99, failed={})
    assert "an unknown number of times as many" in claims_of(hopeless, "rollouts")[0]


def test_the_page_stands_alone_and_draws_a_curve_by_each_measure(report: dict[str, Any]) -> None:
    page = comparison_page("mine", report)
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == len(MEASURES)
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert comparison_page("mine", report) == page
    assert np.isfinite([entry["rollouts"] for entry in report["measures"]["rollouts"]["curves"]]).all()


def test_a_median_that_is_not_reached_lies_above_what_is_known_of_it_and_not_above_what_was_spent() -> None:
    """Of four seeds one reaches it at 667 of 900; three were refused at 400, 500 and 600."""
    rows, spending = tables()
    costs = {1: 400.0, 2: 500.0, 3: 600.0}
    early = [row for row in rows if row["arm"] == "theirs" or not row["seed"] or row["rollouts"] <= 400]
    paid_less = [
        row | {"rollouts": costs[row["seed"]] - 400}
        if row["arm"] == "ours" and row["seed"] and row["stage"] == "actor"
        else row
        for row in spending
    ]
    found = comparison_report(early, paid_less, method="ours", threshold=0.5, failed={})
    ours = found["measures"]["rollouts"]["arms"]["ours"]
    assert (ours["spent"], ours["cost_to_threshold"], ours["cost_at_least"]) == (600, None, 550)
    assert '<td data-label="rollouts to 50 %">&gt; 550</td>' in comparison_page("r", found)


def test_nothing_that_was_looked_at_is_said_to_be_nothing() -> None:
    report = comparison_report([], [], method="ours", threshold=0.5, failed={("ours", 0): "killed"})
    assert report["arms"] == {}
    assert "ours-seed0" in comparison_page("r", report)
