"""The pictures of a run's summary: where the budget went, success by level, feedback, opponents."""

from collections.abc import Mapping
from typing import Any

from pipeline.report import Block, Drawing, Section, Table, Text, plots
from pipeline.report.comparison import MEASURES
from pipeline.report.comparison_page import claims_of
from pipeline.runs import MAIN_CHAIN, REFRESHES

SUCCESS = "success on held-out tasks (%)"


def budget_section(summary: Mapping[str, Any]) -> Section:
    """Returns where rollouts, sampled tokens and minutes went, stage by stage."""
    sampled, minutes = summary["budget"]["by_stage"], summary["minutes_by_stage"]
    stages = [name for name in (*MAIN_CHAIN, REFRESHES) if name in sampled or name in minutes]
    found = {
        unit: {stage: float(sampled[stage][unit]) for stage in stages if stage in sampled}
        for unit in ("rollouts", "tokens")
    } | {"minutes": {stage: minutes[stage] for stage in stages if stage in minutes}}
    # Named once, in the chain's order, whichever row has them: so a stage has one colour in all of them.
    rows = {unit: {stage: own.get(stage, 0.0) for stage in stages} for unit, own in found.items()}
    cells = tuple(
        (stage, *(_number(own.get(stage), unit == "minutes") for unit, own in found.items()))
        for stage in stages
    )
    return Section(
        "Where the budget went",
        (
            Drawing(
                plots.shares("budget", rows),
                "Shares of all sampled rollouts, of their tokens, and of the minutes that stages worked. "
                "Evaluation counts as no budget, but takes its minutes; a refresh of the critic is in the "
                "actor's.",
            ),
            Table(("stage", *found), cells),
        ),
    )


def success_section(measures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Section:
    """Returns success by level and split: start and actor, and what feedback adds.

    `measures` are those of the evaluation's report: measure -> slice -> start and actor with intervals.
    """

    def rows(*series: tuple[str, str, str]) -> dict[str, dict[str, plots.Numbers]]:
        slices = [name for name in measures["first_try"] if name != "all"]
        return {
            name.replace("_", " "): {
                said: measures[measure][name][who]
                for said, measure, who in series
                if measures[measure][name]["tasks"]
            }
            for name in slices
        }

    policies = rows(("starting policy", "first_try", "start"), ("actor", "first_try", "actor"))
    feedback = rows(("first try", "first_try", "actor"), ("with feedback", "with_feedback", "actor"))
    bounds = "Bars are 95 % intervals over clusters of tasks; a hollow point, of few clusters, has none."
    return Section(
        "By level and split",
        (
            Drawing(
                plots.compared("levels", policies, x_label=SUCCESS),
                f"First tries at temperature 1, before and after training. {bounds}",
            ),
            Drawing(
                plots.compared("feedback", feedback, x_label=SUCCESS),
                "The actor's first tries against its chains of two attempts, of which the second is told why "
                f"the first failed. {bounds}",
            ),
        ),
    )


def opponents_section(comparison: Mapping[str, Any]) -> Section:
    """Returns how the arms of a comparison in this run ended at equal budget, of its report."""
    primary, method = next(iter(MEASURES)), comparison["method"]
    found = comparison["measures"][primary]
    order = sorted(found["arms"], key=lambda arm: (arm != method, arm))
    rows = {arm: found["arms"][arm]["success_at_budget"] for arm in order}
    claims: list[Block] = [Text(line) for line in claims_of(comparison, primary)]
    return Section(
        "Against opponents",
        [
            Drawing(
                plots.points("opponents", rows, x_label="success (%)", level=None),
                f"Mean success over seeds at {found['budget']:,.0f} {MEASURES[primary]}; bars are 95 % "
                "intervals. The whole comparison: comparison/report.html.",
            ),
            *claims,
        ],
    )


def _number(value: float | None, is_minutes: bool) -> str:
    return "" if value is None else f"{value:,.1f}" if is_minutes else f"{value:,.0f}"
