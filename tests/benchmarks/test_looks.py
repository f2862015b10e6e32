"""Arms of several seeds side by side, of looks whose curves are known."""

import pytest

from benchmarks._looks import ahead, at_thresholds, curves_by_arm, for_critic, lines
from benchmarks._regime_table import fewer
from benchmarks._results import Row, Table, measured


def table(method: float, other: float) -> Table:
    """Both start at .1; the method pays 1,000 stored rollouts and ends after 2,000, the other after 8,000.

    A rollout of the method has twice as many tokens, and takes four times as long.
    """

    def look(arm: str, at: int, success: float, paid: int) -> list[Row]:
        tokens, seconds = (20, 4) if arm == "v_dapo" else (10, 1)
        costs = {"rollouts": paid, "tokens": tokens * paid, "seconds": seconds * paid}
        return measured(arm, {f"success at {at}": success} | {f"{of} at {at}": x for of, x in costs.items()})

    rows = look("v_dapo", -1, 0.1, 0) + look("v_dapo", 0, 0.55, 1000) + look("v_dapo", 2, method, 2000)
    rows += measured("v_dapo", {"rollouts of rollouts": 1000, "rollouts of actor": 1000})
    rows += look("decoupled_clip", -1, 0.1, 0) + look("decoupled_clip", 0, 0.1, 0)
    rows += look("decoupled_clip", 40, other, 8000)
    return Table([*rows, *measured("decoupled_clip", {"rollouts of actor": 8000})])


def test_a_curve_stays_at_the_start_until_the_actor_begins_and_ends_with_all_that_was_paid() -> None:
    curve = curves_by_arm({0: table(0.75, 0.7)})["v_dapo"][0]
    assert curve.costs.tolist() == [0, 1000, 1000, 2000]
    assert curve.observed[0].tolist() == [0.1, 0.1, 0.55, 0.75]


def test_an_arm_is_held_against_another_at_its_own_budget_and_by_rollouts_to_the_threshold() -> None:
    ours, other = lines("sparse", {0: table(0.75, 0.9), 1: table(0.75, 0.9)}, "decoupled_clip")
    assert ours == [
        "v_dapo",
        "2,000",
        "50 %",  # nothing else learns from its rollouts
        "0.750 [0.750, 0.750]",
        "1,500, 1,500",
        "0.450 [0.450, 0.450]",
        "1.000",  # two seeds that agree say nothing of others
        "3.67 [3.67, 3.67]",
        "1.000",
        "1.83 [1.83, 1.83]",
        "0.92 [0.92, 0.92]",
    ]
    assert other == ["decoupled_clip", "8,000", "", "0.900 [0.900, 0.900]", "5,500, 5,500", *[""] * 6]


def test_the_dearer_of_two_arms_is_read_at_what_the_cheaper_one_spent() -> None:
    """At 2,000 of its 8,000 rollouts the opponent has a quarter of its gain: .275."""
    _, other = lines("sparse", {0: table(0.75, 0.8)}, "v_dapo")
    assert other[5] == "-0.475 [no bounds]"


def test_two_arms_are_held_against_each_other_at_what_the_cheaper_one_spent() -> None:
    found = ahead("sparse", {0: table(0.75, 0.9), 1: table(0.75, 0.9)}, "decoupled_clip", "v_dapo")
    assert found == "-0.450 [-0.450, -0.450] at 2,000 rollouts"


def test_of_fresh_rollouts_alone_what_was_paid_before_them_is_free() -> None:
    """After 1,000 fresh rollouts the method has .75, the opponent an eighth of its gain more than .1: .2."""
    tables = {0: table(0.75, 0.9), 1: table(0.75, 0.9)}
    found = ahead("sparse", tables, "v_dapo", "decoupled_clip", fresh=True)
    assert found == "0.550 [0.550, 0.550] at 1,000 rollouts"


def test_what_never_reaches_the_threshold_bounds_the_ratio() -> None:
    ours, other = lines("sparse", {0: table(0.75, 0.6), 1: table(0.75, 0.6)}, "decoupled_clip")
    assert other[4] == "> 8,000, > 8,000"
    assert ours[7] == "at least 5.33 [5.33, open]"
    _, nobody = lines("sparse", {0: table(0.6, 0.6)}, "v_dapo")
    assert nobody[7] == "neither median reaches it"


def test_a_ratio_at_other_thresholds_says_whether_the_headline_hangs_on_its_own() -> None:
    """The method is at .55 after its 1,000 stored rollouts, the other at .5 after half of 8,000."""
    tables = {0: table(0.75, 0.9), 1: table(0.75, 0.9)}
    [line] = at_thresholds("sparse", tables, "decoupled_clip", (0.5, 0.65, 0.95))
    assert line == ["v_dapo", "4.00", "3.67", "neither median reaches it"]


def test_what_a_stored_phase_learns_from_is_not_for_the_critic_alone() -> None:
    stages = {"rollouts": 600, "critic_report": 200, "stored": 0, "actor": 200}
    paid = {f"rollouts of {stage}": number for stage, number in stages.items()}
    assert for_critic(Table(measured("v_dapo", paid)), "v_dapo") == 200
    del paid["rollouts of stored"]
    assert for_critic(Table(measured("v_dapo", paid)), "v_dapo") == 800


def test_times_fewer_is_of_the_least_seed_and_the_most_and_says_who_never_came() -> None:
    """1,500 rollouts to .65; others pay 5,500 on a seed, and 8,000 for .6 on another."""
    curves = curves_by_arm({0: table(0.75, 0.9), 1: table(0.75, 0.6)})
    own, others = (list(curves[arm].values()) for arm in ("v_dapo", "decoupled_clip"))
    assert fewer(own, others, 0.65) == "3.7 to > 5.3"
    short = curves_by_arm({0: table(0.6, 0.6)})["v_dapo"][0]  # 2,000 rollouts and not there
    assert fewer(own, [others[0], short], 0.65) == "> 1.33 to > 3.6"  # 3.67, rounded down
    with pytest.raises(ValueError, match=r"a run did not reach 0\.65 for 8000"):
        fewer(others, own, 0.65)
