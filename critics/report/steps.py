"""Sections about steps: advantages, sibling steps, and probes that change one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from critics.audit.first_error import LARGE_FALL
from critics.report import gate
from critics.report.parts import READINGS, bounded, cell, named, plots_module
from pipeline.report import Drawing, Section, Table, Text


def steps_section(report: Mapping[str, Any]) -> Section:
    """Returns its step advantages beside the measured ones."""
    points = report["scatter"]
    if not points["advantage"]:
        return Section(
            "Does it tell steps apart?", (Text("No two neighbouring states were audited.", "note"),)
        )
    svg = plots_module().scatter(
        "advantages",
        points["advantage_hat"],
        points["advantage"],
        x_label="measured change of the chance of success",
        y_label="critic's change",
        bounds=(-1.0, 1.0),
    )
    caption = (
        "Each point is one step between two audited states. Points along the diagonal: its step credit is "
        "right; along a flatter line: right in sign, too small; a cloud: noise. Upper left and lower right "
        "have the wrong sign."
    )
    return Section("Does it tell steps apart?", (Drawing(svg, caption),))


def siblings_section(report: Mapping[str, Any]) -> Section:
    """Returns how often it knows the better of two next steps, and how it locates first errors."""
    title = "Does it know the better of two next steps?"
    found = report["siblings"]
    blocks: list[Any] = []
    if not found["num_sets"]:
        blocks.append(Text("No sets of sibling steps were played.", "note"))
    elif not found["num_telling"]:
        words = (
            f"{found['num_sets']} sets of sibling steps were played, and in none do measured chances differ. "
            "More critic_report.sibling_sets or num_continuations would tell."
        )
        blocks.append(Text(words, "note"))
    else:
        names = {
            "sibling_chance": "a blind choice",
            "sibling_top1": "this critic",
            "sibling_reference": f"continuations (K = {found['reference_size']})",
        }
        values = [found[name] for name in names]
        middle, *bounds = bounded(values)
        svg = plots_module().points(
            "siblings",
            named(list(names.values()), values),
            middle,
            *bounds,
            x_label="best next step named",
            level=None,
        )
        blocks.append(
            Drawing(
                svg,
                f"{found['num_telling']} sets of steps from one state each, whose measured chances differ. "
                "Right of a blind choice it knows good steps. Continuations: what so many fresh samples of "
                "each step tell. They are noisy, so a good critic may beat them.",
            )
        )
        rows = tuple((name, cell(found[name]), words) for name, words in READINGS.items() if name in found)
        blocks.append(Table(("measure", "value", "reading"), rows))
    located = report["first_error"]
    rows = tuple(
        (name, cell(located[name]), READINGS[name]) for name in ("exact", "within_one", "none", "f1")
    )
    caption = (
        f"First error: the first step that lowers the value by more than {LARGE_FALL:g}, against "
        f"the verifiers' ({located['num_wrong']} rollouts with one, {located['num_right']} without). After "
        "the last step the value is the outcome, so the last step of a failure is found by any value that "
        "is high enough. Not what the critic is for."
    )
    blocks.append(Table(("measure", "value", "reading"), rows, caption))
    return Section(title, tuple(blocks))


def probes_section(report: Mapping[str, Any]) -> Section:
    """Returns how its value moves when one step is changed."""
    title = "Is it fooled by form?"
    found = report["probes"]
    blocks: list[Any] = []
    if not any(row["num_states"] for row in found):
        blocks.append(Text("No probes were made.", "note"))
    else:
        values = [row["change"] for row in found]
        middle, *bounds = bounded(values)
        names = [f"{row['kind']} ({row['num_states']})" for row in found]
        svg = plots_module().points(
            "probes", named(names, values), middle, *bounds, x_label="change of the value"
        )
        caption = (
            "Mean change of the value when one step is changed (number of states). The last two must "
            "lie below 0, the others must not lie above it. Words that change nothing should move nothing: "
            "the farther filler and style lie below 0, the more the critic goes by form too."
        )
        blocks.append(Drawing(svg, caption))
        words = {True: "holds", False: "DOES NOT HOLD", None: gate.NOT_MEASURED}
        rows = tuple(
            (
                row["kind"],
                row["means"],
                row["phone"],
                row["expects"],
                cell(row["change"]),
                words[row["holds"]],
                row["why"],
            )
            for row in found
        )
        header = (
            "probe",
            "what changes",
            "in a phone episode",
            "must",
            "change of the value",
            "",
            "looks for",
        )
        blocks.append(Table(header, rows))
    lengths = tuple(
        (name.replace("_", " "), cell(of["given_truth"]), cell(of["left_over"]))
        for name, of in report["length_correlations"].items()
    )
    caption = (
        "Not judged. Given the truth: what the value has to do with length beyond success. It is 0 for "
        "a critic that is right up to noise, not for a calibrated one that sees little else. Left over: how "
        "much the value is short per standard deviation of length, 0 where all is made of the length that "
        "there is to make."
    )
    blocks.append(Table(("", "given the truth", "left over"), lengths, caption))
    return Section(title, tuple(blocks))
