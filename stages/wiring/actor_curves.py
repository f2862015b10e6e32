"""How an actor learned, as drawings of its report."""

from collections.abc import Mapping
from typing import Any

from pipeline.report import Drawing, plots
from pipeline.report.page import viewer_link

LABELS = {
    "val": "first tries on val",
    "first_try": "first tries to train on",
    "with_feedback": "attempts after feedback",
    "retried_first_try": "without feedback",
    "retried_with_feedback": "after feedback",
}


def learning_curve(report: Mapping[str, Any], *, leads: bool = False) -> Drawing:
    """Returns success by iteration from the actor's report, with the look after the last one.

    On the page of a stage points may lead to an iteration's rollouts.
    """
    learning = report["learning"]
    if leads:
        learning = [e | {"link": viewer_link(stage="actor", iteration=e["iteration"])} for e in learning]
    entries = [*learning, *filter(None, [report.get("last_look")])]
    measures = ("val", "first_try", "with_feedback")
    svg = plots.curves("learning", entries, measures, x="iteration", y_label="success (%)", labels=LABELS)
    where = " In `vdapo view` a point leads to its iteration's rollouts." if leads else ""
    return Drawing(
        svg,
        "Success before each iteration: of first tries on val, and of the rollouts that were then sampled to "
        "train on. Those after feedback retry tasks that failed, so they are no chains of attempts as in the "
        "evaluation. The last point of val is the finished actor's." + where,
    )


def spent_curve(report: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]] | None = None) -> Drawing:
    """Returns success on val by the rollouts that the actor had sampled before it was looked at.

    `others` are reports of actors that began as this one did, by their names: lines beside its own.
    """
    reports, x = {"val": report, **(others or {})}, "rollouts sampled before"
    entries = [{x: spent, name: val} for name, of in reports.items() for spent, val in _val_by_rollouts(of)]
    svg = plots.curves("spent", entries, list(reports), x=x, y_label="success of first tries on val (%)")
    beside = (
        " Other lines are runs beside this one, from the same sft; a stored phase may lie between."
        if others
        else ""
    )
    return Drawing(
        svg,
        "What the actor's own rollouts bought: those that it was trained on, surplus ones and fresh "
        "continuations that check its critic. What the stages before it and refreshes of its critic sampled "
        "is not counted." + beside,
    )


def _val_by_rollouts(report: Mapping[str, Any]) -> list[tuple[float, float | None]]:
    spent, points = 0.0, []
    for entry in (*report["learning"], *filter(None, [report.get("last_look")])):
        points.append((spent, entry.get("val")))
        spent += entry.get("rollouts", 0.0) + entry.get("continuations", 0.0)
    return points


def reliance_curve(report: Mapping[str, Any]) -> Drawing:
    """Returns success without and with feedback on the same tasks, where both were sampled."""
    measures = ("retried_first_try", "retried_with_feedback")
    entries = report["learning"]
    svg = plots.curves("reliance", entries, measures, x="iteration", y_label="success (%)", labels=LABELS)
    return Drawing(svg, "Tasks that another bare rollout failed: the gap is how much feedback still helps.")
