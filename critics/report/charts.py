"""The drawings of the report's page: report.json to SVG, "" where there is nothing to draw."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from critics.audit.slices import NUM_POSITIONS
from pipeline.report import plots

Report = Mapping[str, Any]


def reliability(report: Report) -> str:
    """Returns predicted against observed success, with the sizes of the bins."""
    bins, floor = report["reliability"], report["measures"]["bare"]["ece_floor"]["value"]
    predicted, observed, sizes = (
        [of[name] for of in bins] for name in ("predicted", "observed", "num_states")
    )
    return plots.reliability(
        "reliability", predicted, observed, sizes, floor=floor or 0.0, rising=report["rising"]
    )


def biases(report: Report) -> str:
    """Returns a map of the bias by level and share of the budget."""
    cells, width = report["bias_by_level_and_position"], 100 // NUM_POSITIONS
    levels = sorted({cell["level"] for cell in cells})
    found = {(cell["level"], cell["position"]): cell for cell in cells}
    table = [[found.get((level, place)) for place in range(NUM_POSITIONS)] for level in levels]

    def words(cell: Mapping[str, Any] | None) -> str:
        if cell is None:
            return ""
        value, low, high = (cell["bias"][name] for name in ("value", "low", "high"))
        mark = "?" if low is None or high is None else "*" if low > 0 or high < 0 else ""
        return f"{value:+.2f}{mark}\n{cell['num_states']}"

    return plots.grid(
        "bias",
        [f"level {level}" for level in levels],
        [f"{width * i}-{width * (i + 1)} %" for i in range(NUM_POSITIONS)],
        [[cell and cell["bias"]["value"] for cell in row] for row in table],
        [[words(cell) for cell in row] for row in table],
        x_label="share of the token budget used",
        bound=0.2,
    )


def states(report: Report) -> str:
    """Returns values against what continuations measured."""
    points = report["scatter"]
    return plots.scatter(
        "values", points["v_hat"], points["p"], x_label="measured by continuations", y_label="critic"
    )


def steps(report: Report) -> str:
    """Returns the change of the value at each step against the measured one."""
    points = report["scatter"]
    if not points["advantage"]:
        return ""
    return plots.scatter(
        "advantages",
        points["advantage_hat"],
        points["advantage"],
        bounds=(-1.0, 1.0),
        x_label="measured change of the chance",
        y_label="critic's change",
    )


def by(kind: str, metric: str, x_label: str) -> Callable[[Report], str]:
    """Returns what draws a metric of each slice of a kind."""

    def drawn(report: Report) -> str:
        rows = {
            f"{'level ' if kind == 'level' else ''}{row['name']} ({row['num_states']})": row[metric]
            for row in report["slices"]
            if row["kind"] == kind
        }
        if all(row["value"] is None for row in rows.values()):
            return ""
        return plots.points(f"{metric}-{kind}", rows, x_label=x_label)

    return drawn


ev_by_position = by("position", "ev", "explained variance")
ev_by_level = by("level", "ev", "explained variance")
ev_within_by_level = by("level", "ev_within", "explained variance within rollouts")


def siblings(report: Report) -> str:
    """Returns how often the best next step is named, beside chance and continuations."""
    measures, found = report["measures"]["bare"], report["siblings"]
    if not found["num_telling"]:
        return ""
    rows = {
        "a blind choice": measures["sibling_chance"],
        "this critic": measures["sibling_top1"],
        f"continuations (K = {found['reference_size']})": measures["sibling_reference"],
    }
    return plots.points("siblings", rows, x_label="best next step named", level=None)


def probes(report: Report) -> str:
    """Returns the mean change of the value for each kind of probe."""
    rows = {f"{row['kind']} ({row['num_states']})": row["change"] for row in report["probes"]}
    return plots.points("probes", rows, x_label="change of the value") if rows else ""


def fit(report: Report) -> str:
    """Returns the held-out Brier while the critic was fitted."""
    entries = report["evaluations"]
    if not entries:
        return ""
    x, brier, se = ([entry[name] for entry in entries] for name in ("update", "brier", "brier_se"))
    curve = plots.Line("", x, brier, np.subtract(brier, se).tolist(), np.add(brier, se).tolist())
    head = max((entry["update"] for entry in entries if entry["phase"] == "head"), default=0)
    marks = [(head, "all weights")] if head else []
    return plots.lines("fit", [curve], x_label="updates", y_label="held-out Brier", marks=marks)


def fit_within(report: Report) -> str:
    """Returns the held-out EV_within while the critic was fitted."""
    found = [(e["update"], e["ev_within"]) for e in report["evaluations"] if e["ev_within"] is not None]
    if len(found) < 2:
        return ""
    curve = plots.Line("", *zip(*found, strict=True))
    return plots.lines("fit-within", [curve], x_label="updates", y_label="EV within rollouts", level=0.0)
