"""How an actor learned, as drawings of its report."""

from collections.abc import Mapping
from typing import Any

from pipeline.report import Drawing, plots


def learning_curve(report: Mapping[str, Any]) -> Drawing:
    """Returns success by iteration from the actor's report, with the look after the last one."""
    entries = [*report["learning"], *filter(None, [report.get("last_look")])]
    measures = ("val", "first_try", "with_feedback")
    svg = plots.curves("learning", entries, measures, x="iteration", y_label="success")
    return Drawing(
        svg,
        "Success before each iteration: of first tries on val, and of the rollouts that were then sampled to "
        "train on. The last point of val is the finished actor's.",
    )


def spent_curve(report: Mapping[str, Any]) -> Drawing:
    """Returns success on val by the rollouts that the actor had sampled before it was looked at."""
    spent, entries = 0.0, []
    for entry in (*report["learning"], *filter(None, [report.get("last_look")])):
        entries.append({"rollouts sampled before": spent, "val": entry.get("val")})
        spent += entry.get("rollouts", 0.0) + entry.get("continuations", 0.0)
    svg = plots.curves(
        "spent", entries, ("val",), x="rollouts sampled before", y_label="success of first tries on val"
    )
    return Drawing(
        svg,
        "What the actor's own rollouts bought: those that it was trained on, surplus ones and fresh "
        "continuations that check its critic. What the stages before it and refreshes of its critic sampled "
        "is not counted.",
    )


def reliance_curve(report: Mapping[str, Any]) -> Drawing:
    """Returns success without and with feedback on the same tasks, where both were sampled."""
    measures = ("retried_first_try", "retried_with_feedback")
    svg = plots.curves("reliance", report["learning"], measures, x="iteration", y_label="success")
    return Drawing(svg, "Tasks that another bare rollout failed: the gap is how much feedback still helps.")
