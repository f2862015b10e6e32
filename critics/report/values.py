"""Sections about values: are the percentages right, and do they tell states apart?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from critics.audit.slices import NUM_POSITIONS, SLICE_METRICS
from critics.report.build import REFERENCE_METRICS
from critics.report.parts import bounded, cell, has_bounds, named, number, plots_module
from pipeline.report import Drawing, Section, Table


def calibration_section(report: Mapping[str, Any]) -> Section:
    """Returns predicted beside observed success, in all and by part."""
    plots = plots_module()
    bins, curves = report["reliability"], report["calibration_curves"]
    floor = number(report["measures"]["bare"]["ece_floor"]["value"])
    observed = [bin_["observed"] for bin_ in bins]
    middle, low, high = bounded(observed)
    svg = plots.reliability(
        "reliability",
        [bin_["predicted"] for bin_ in bins],
        middle,
        low,
        high,
        [bin_["num_states"] for bin_ in bins],
        floor=floor,
        rising=[point for curve in curves["all"] for point in _corners(curve)],
    )
    caption = (
        "Predicted against observed success. On the diagonal a stated 70 % happens 7 times in 10; points or "
        "curve below it: too hopeful there. The curve is the best one that never falls (isotonic), for the "
        "eye only: on its flat parts no step would count."
    )
    if unknown := sum(not has_bounds(interval) for interval in observed):
        caption += f" Without a bar, {unknown} of {len(bins)}: no bounds are known."
    blocks = [Drawing(svg, caption)]
    for kind, words in (("level", "level of the task"), ("position", "share of the token budget used")):
        lines = [
            plots.Line(f"{curve['name']} ({curve['num_states']})", *zip(*_corners(curve), strict=True))
            for curve in curves[kind]
        ]
        if len(lines) > 1:
            svg = plots.lines(
                f"rising-{kind}", lines, x_label="predicted chance of success", y_label="observed success",
                diagonal=True,
            )  # fmt: skip
            caption = (
                f"The same curve by {words} (number of states). One that runs below the diagonal all along: "
                "there the critic is too hopeful, which its figures over all states may hide. Ends are noisy."
            )
            blocks.append(Drawing(svg, caption))
    return Section("Are its percentages right?", tuple(blocks))


def _corners(curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Returns the corners of plateaus (lowest x, highest x, y)."""
    return [(x, y) for low, high, y in curve["plateaus"] for x in ((low, high) if high > low else (low,))]


def values_section(report: Mapping[str, Any]) -> Section:
    """Returns what its values explain, beside references and by part."""
    plots = plots_module()
    points = report["scatter"]
    blocks: list[Any] = [
        Drawing(
            plots.scatter(
                "values", points["v_hat"], points["p"], x_label="measured by continuations", y_label="critic"
            ),
            "Each point is a state; right ones lie on the diagonal. Sideways scatter is partly the noise of "
            "finitely many continuations.",
        )
    ]
    for kind, words in (("position", "share of the token budget used"), ("level", "level of the task")):
        rows = report[f"ev_by_{kind}"]
        for metric, name in (
            ("ev", "explained variance"),
            ("ev_within", "explained variance within rollouts"),
        ):
            values = [row[metric] for row in rows]
            middle, low, high = bounded(values)
            if all(math.isnan(m) for m in middle):
                continue  # e.g. one audited state of each rollout in each part
            prefix = "level " if kind == "level" else ""
            names = [f"{prefix}{row['name']} ({row['num_states']})" for row in rows]
            svg = plots.points(f"{metric}-{kind}", named(names, values), middle, low, high, x_label=name)
            caption = (
                f"{name.capitalize()} by {words} (number of states). 1 is perfect; a bar that reaches 0 or "
                "lies left of it: no better there than one number for all"
                + (" states of a rollout." if metric == "ev_within" else " states.")
            )
            blocks.append(Drawing(svg, caption))
    references = list(report["baselines"])
    if fitted := report["fitted"]:
        references.append(fitted | {"name": f"this critic on {fitted['num_tasks']} tasks it was fitted on"})
    baseline_rows = tuple(
        (row["name"], *(cell(row[metric], 2) for metric in REFERENCE_METRICS)) for row in references
    )
    caption = (
        "Each reference has an advantage: it knows outcomes of the audited tasks or states, or was fitted on "
        "them. So few continuations are noisy all the same: a good critic may beat them. The solver's V* is "
        "the chance of the best play there is: a bound from above, not an estimate of this policy's. "
        "Far better on tasks it was fitted on than on unseen ones: it knows them by heart."
    )
    of_each = ("Brier (lower is better)", "EV", "EV within", "rho_A", "RMSE", "AUROC", "ECE above its floor")
    blocks.append(Table(("estimate", *of_each), baseline_rows, caption))
    blocks.append(_bias_drawing(report["bias_by_level_and_position"]))
    slice_rows = tuple(
        (
            f"{row['kind']} {row['name']}",
            str(row["num_states"]),
            str(row["num_tasks"]),
            *(cell(row[metric], 2) for metric in SLICE_METRICS),
        )
        for row in report["slices"]
    )
    titles = ("EV", "EV within", "rho_A", "bias", "RMSE", "skill over task rate", "AUROC", "AUPRC")
    header = ("slice", "states", "tasks", *titles)
    caption = "By level, position, split, context (all contexts), and length, which only hindsight knows"
    blocks.append(Table(header, slice_rows, caption))
    return Section("Does it tell states apart?", tuple(blocks))


def _bias_drawing(cells: Sequence[Mapping[str, Any]]) -> Drawing:
    width = 100 // NUM_POSITIONS
    levels = sorted({cell["level"] for cell in cells})
    found = {(cell["level"], cell["position"]): cell for cell in cells}

    def words(cell: Mapping[str, Any] | None) -> str:
        if cell is None:
            return ""
        bias = cell["bias"]
        mark = "?" if not has_bounds(bias) else "*" if bias["low"] > 0 or bias["high"] < 0 else ""
        return f"{bias['value']:+.2f}{mark}\n{cell['num_states']}"

    grid = [[found.get((level, place)) for place in range(NUM_POSITIONS)] for level in levels]
    svg = plots_module().grid(
        "bias",
        [f"level {level}" for level in levels],
        [f"{width * i}-{width * (i + 1)} %" for i in range(NUM_POSITIONS)],
        [[None if cell is None else cell["bias"]["value"] for cell in row] for row in grid],
        [[words(cell) for cell in row] for row in grid],
        x_label="share of the token budget used",
        bound=0.2,
    )
    caption = (
        "Bias: mean of predicted minus measured, and the number of states. Red is too hopeful, blue too "
        "gloomy; a star: chance alone does not explain it (95 %); a question mark: no bounds are known. A "
        "bias that grows along the budget rewards or punishes going on."
    )
    return Drawing(svg, caption)
