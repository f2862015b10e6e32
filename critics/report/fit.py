"""Sections about how the critic was made: its fit and its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from critics.report.parts import cell, count, plots_module
from pipeline.report import Drawing, Section, Table, Text


def fit_section(report: Mapping[str, Any]) -> Section:
    """Returns how the held-out Brier fell while it was fitted."""
    entries = report["evaluations"]
    if not entries:
        return Section("How was it fitted?", (Text("The fit's evaluations were not given.", "note"),))
    plots = plots_module()
    x = [entry["update"] for entry in entries]
    brier = [entry["brier"] for entry in entries]
    se = [entry["brier_se"] for entry in entries]
    low, high = np.subtract(brier, se).tolist(), np.add(brier, se).tolist()
    head = max((entry["update"] for entry in entries if entry["phase"] == "head"), default=0)
    curve = plots.Line("held-out Brier", x, brier, low, high)
    marks = [(head, "all weights")] if head else []
    svg = plots.lines(
        "fit", [curve], x_label="updates", y_label="held-out Brier, +- one standard error", marks=marks
    )
    blocks = [
        Drawing(
            svg,
            "Brier on the clusters that decide when to stop, with the level of the values set to theirs, as "
            "calibration will: not to be compared with the audit's. Fitting stops when several looks "
            "running gain less than a standard error.",
        )
    ]
    within = [(entry["update"], entry["ev_within"]) for entry in entries if entry["ev_within"] is not None]
    if len(within) > 1:
        line = plots.Line("EV within", *zip(*within, strict=True))
        svg = plots.lines(
            "fit-within", [line], x_label="updates", y_label="held-out EV within rollouts", level=0.0
        )
        blocks.append(
            Drawing(
                svg,
                "Higher is better, above 0 useful for steps. Among weights with equal Brier, those with the "
                "highest EV within are kept.",
            )
        )
    return Section("How was it fitted?", tuple(blocks))


AUDIT_READINGS = {
    "base_rate": "success of all samples",
    "guided_share": "labels of states after feedback",
    "noise_share": "of the differences between continued states, what is chance: no critic can fit it",
    "noise_share_one_sample": "the same if each had one sample, as an own outcome is",
    "num_duplicates": "labels of a state that another label is of too",
    "duplicate_share": "of all labels",
}


def labels_section(report: Mapping[str, Any]) -> Section:
    """Returns what it was fitted to and what that cost."""
    title = "What was it fitted to?"
    labels, fit = report["labels"], report["fit"]
    if not labels:
        return Section(title, (Text("The labels' report was not given.", "note"),))
    blocks: list[Any] = []
    if fit:
        words = f"Fitted on {count(fit['labelled_rollouts']['fit'])} rollouts with labels"
        if number := fit.get("continuations"):
            words += f" and {count(number)} continuations of theirs, each with its own outcome at its states"
        blocks.append(Text(words + "."))
    by_source = labels.get("num_by_source") or {}
    if by_source:
        svg = plots_module().shares("labels", list(by_source), list(by_source.values()), x_label="labels")
        caption = (
            "Labels of all companies, those that only validate or calibrate among them, by where they come "
            "from. Continuations say most: they were sampled for the state. An own outcome is one sample of "
            "it, recovery none: an estimate from like states."
        )
        blocks.append(Drawing(svg, caption))
    if found := labels.get("audit"):
        rows = tuple(
            (name.replace("_", " "), count(found[name]), reading) for name, reading in AUDIT_READINGS.items()
        )
        blocks.append(Table(("measure", "value", "reading"), rows))
        costs = tuple(
            (
                source,
                *(count(entry[name]) for name in ("labels", "samples", "tokens")),
                count(entry["tokens"] / entry["samples"] if entry["samples"] else None),
            )
            for source, entry in found["sources"].items()
        )
        columns = ("samples from", "labels", "samples", "tokens", "tokens a sample")
        caption = "What they cost. Own outcomes are of rollouts that the rollouts stage has paid for."
        blocks.append(Table(columns, costs, caption))
    codes = labels.get("codes") or {}
    if codes:
        recovered = tuple(
            (
                code,
                count(entry["num_continuations"]),
                count(entry["num_tasks"]),
                cell({"value": entry["recovery_rate"], "low": entry["low"], "high": entry["high"]}, 2),
            )
            for code, entry in codes.items()
        )
        header = ("latest error", "continuations", "tasks", "success from there")
        caption = "How often the policy recovers in bare states, from the labels' fresh continuations"
        blocks.append(Table(header, recovered, caption))
    plain = [
        (name, count(labels[name]))
        for name in sorted(labels)
        if isinstance(labels[name], int | float | str) and not isinstance(labels[name], bool)
    ]
    if plain:
        blocks.append(Table(("labels", ""), tuple(plain)))
    return Section(title, tuple(blocks))
