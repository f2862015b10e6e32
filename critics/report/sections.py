"""The sections of the report's page, as data: a title, drawings with how to read them, measures, tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from critics.audit.first_error import LARGE_FALL
from critics.audit.slices import SLICE_METRICS
from critics.report import charts
from critics.report.build import REFERENCE_METRICS
from critics.report.charts import Report
from critics.report.readings import READINGS
from pipeline.report import Table


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and how to read it; `draw` returns an SVG, "" where there is nothing to draw."""

    draw: Callable[[Report], str]
    caption: str


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the page.

    Attributes:
        title: a question.
        charts: in order.
        measures: keys of `READINGS`; those that the report has are shown with what they say.
        caption: of the measures.
        tables: None where there is nothing to show.
        absent: said where the section has neither drawing nor measure.
    """

    title: str
    charts: tuple[Chart, ...] = ()
    measures: tuple[str, ...] = ()
    caption: str = ""
    tables: tuple[Callable[[Report], Table | None], ...] = ()
    absent: str = ""


def cell(numbers: Mapping[str, float | None], digits: int = 3) -> str:
    """Returns a figure with its interval as a cell of a table."""
    value, low, high = numbers["value"], numbers["low"], numbers["high"]
    if value is None:
        return "undefined"
    if low is None or high is None or not math.isfinite(low + high):
        return f"{value:.{digits}f} [no bounds]"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def count(x: float | str | None) -> str:
    """Returns a count with thousands apart, a share with three digits."""
    if isinstance(x, float):
        return f"{x:.3f}" if abs(x) < 10 else f"{x:,.0f}"
    return "undefined" if x is None else f"{x:,}" if isinstance(x, int) else x


def _reference_table(report: Report) -> Table:
    titles = ("Brier (lower is better)", "EV", "EV within", "rho_A", "RMSE", "AUROC", "ECE above its floor")
    rows = tuple((r["name"], *(cell(r[m], 2) for m in REFERENCE_METRICS)) for r in report["references"])
    caption = (
        "References, each with an advantage: it knows outcomes of the audited tasks or states, or was "
        "fitted on them. Trees on what is visible say how much a critic that reads only the dialogue could "
        "explain; told the errors, how much a verifier would add. Continuations are noisy: a good critic "
        "may beat them. V* bounds from above. Far better on tasks it was fitted on: it knows them by heart."
    )
    return Table(("estimate", *titles), rows, caption)


def _slice_table(report: Report) -> Table:
    titles = ("EV", "EV within", "rho_A", "bias", "RMSE", "AUROC")
    rows = tuple(
        (f"{r['kind']} {r['name']}", *(str(r[n]) for n in ("num_states", "num_tasks")),
         *(cell(r[m], 2) for m in SLICE_METRICS))
        for r in report["slices"]
    )  # fmt: skip
    caption = "All audited states, values as frozen. How long a rollout becomes only hindsight knows."
    return Table(("slice", "states", "tasks", *titles), rows, caption)


def _probe_table(report: Report) -> Table | None:
    words = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}
    rows = tuple(
        (r["kind"], r["means"], r["expects"], cell(r["change"]), words[r["holds"]], r["why"])
        for r in report["probes"]
    )
    header = ("probe", "what changes", "must", "change of the value", "", "looks for")
    return Table(header, rows) if rows else None


def _length_table(report: Report) -> Table:
    rows = tuple(
        (name.replace("_", " "), cell(of["given_truth"]), cell(of["left_over"]))
        for name, of in report["length_correlations"].items()
    )
    caption = (
        "Not judged. Given the truth: what the value has to do with length beyond success; 0 for a critic "
        "that is right up to noise. Left over: how much the value is short per standard deviation of "
        "length; 0 for a critic that makes of length what there is to make."
    )
    return Table(("", "given the truth", "left over"), rows, caption)


def _label_sources(report: Report) -> Table | None:
    found = report["labels"].get("audit")
    if not found:
        return None
    rows = tuple(
        (
            source,
            *(count(entry[name]) for name in ("labels", "samples", "tokens")),
            count(entry["tokens"] / entry["samples"] if entry["samples"] else None),
        )
        for source, entry in found["sources"].items()
    )
    shares = ", ".join(
        f"{name.replace('_', ' ')} {count(found[name])}"
        for name in ("base_rate", "guided_share", "noise_share", "noise_share_one_sample", "duplicate_share")
    )
    caption = (
        f"Labels of all clusters by what they come from. Of them: {shares}. The noise share is chance, "
        "which no critic can fit. Own outcomes are of rollouts that were paid for anyway."
    )
    return Table(("samples from", "labels", "samples", "tokens", "tokens a sample"), rows, caption)


def _recovery(report: Report) -> Table | None:
    codes = report["labels"].get("codes")
    rows = tuple(
        (
            code,
            count(of["num_continuations"]),
            count(of["num_tasks"]),
            cell(of | {"value": of["recovery_rate"]}, 2),
        )
        for code, of in (codes or {}).items()
    )
    caption = "How often the policy recovers in bare states, from the labels' fresh continuations"
    return (
        Table(("latest error", "continuations", "tasks", "success from there"), rows, caption)
        if rows
        else None
    )


def _fitted_on(report: Report) -> Table | None:
    parts = {
        f"labelled rollouts: {name}": n for name, n in report["fit"].get("labelled_rollouts", {}).items()
    }
    if number := report["fit"].get("continuations"):
        parts["continuations, each with its own outcome at its states"] = number
    rows = tuple((name, count(number)) for name, number in parts.items())
    return Table(("fitted on", ""), rows) if rows else None


def _between(first: str, last: str) -> tuple[str, ...]:
    names = list(READINGS)
    return tuple(names[names.index(first) : names.index(last) + 1])


_EV = " (number of states). 1 is perfect; where a bar reaches 0, one number would do as well."
SECTIONS = (
    Part(
        "Are its percentages right?",
        (
            Chart(
                charts.reliability,
                "Judged states, level refitted. On the diagonal a stated 70 % happens 7 times in 10; below "
                "it the critic is too hopeful. The curve is the best one that never falls (isotonic). A "
                "hollow point has no bounds.",
            ),
            Chart(
                charts.biases,
                "Bias of all bare states as frozen: mean of predicted minus measured, and the number of "
                "states. Red is too hopeful, blue too gloomy; a star: chance alone does not explain it (95 "
                "%); a question mark: no bounds are known. A bias that grows along the budget rewards or "
                "punishes going on.",
            ),
        ),
        _between("bias", "uncertainty"),
    ),
    Part(
        "Does it tell states apart?",
        (
            Chart(
                charts.states,
                "Each point is a state; right ones lie on the diagonal. Sideways scatter is partly the "
                "noise of finitely many continuations.",
            ),
            Chart(
                charts.by("position", "ev", "explained variance"),
                "Explained variance by share of the budget used" + _EV,
            ),
            Chart(
                charts.by("level", "ev", "explained variance"),
                "Explained variance by level of the task" + _EV,
            ),
            Chart(
                charts.by("level", "ev_within", "explained variance within rollouts"),
                "Explained variance within rollouts by level of the task" + _EV,
            ),
        ),
        _between("ev", "share_above_solver"),
        tables=(_reference_table, _slice_table),
    ),
    Part(
        "Does it tell steps apart?",
        (
            Chart(
                charts.steps,
                "Each point is one step between two audited states. Along the diagonal its step credit is "
                "right; along a flatter line right in sign, too small; a cloud is noise. Upper left and "
                "lower right have the wrong sign.",
            ),
            Chart(
                charts.siblings,
                "Several next steps of one state, the measured chances of which differ. Right of a blind "
                "choice the critic knows good steps. Continuations of each step are noisy, so a good "
                "critic may beat them.",
            ),
        ),
        _between("rho_a", "improvement_covariance"),
        absent="No two neighbouring states were audited, and no sets of sibling steps were played.",
    ),
    Part(
        "Is it fooled by form?",
        (
            Chart(
                charts.probes,
                "Mean change of the value when one step is changed (number of states). The last two must "
                "lie below 0, the others must not lie above it. Words that change nothing should move "
                "nothing.",
            ),
        ),
        tables=(_probe_table, _length_table),
        absent="No probes were made.",
    ),
    Part(
        "Does it see the first error?",
        measures=_between("exact", "f1"),
        caption=f"The first step that lowers the value by more than {LARGE_FALL:g}, against the verifiers' "
        "first error, in bare rollouts. Not what the critic is for.",
    ),
    Part(
        "How was it fitted, and to what?",
        (
            Chart(
                charts.fit,
                "Held-out Brier, +- one standard error, on the clusters that decide when to stop, level "
                "refitted: not to be compared with the audit's. Fitting stops when several looks gain less "
                "than a standard error.",
            ),
            Chart(
                charts.fit_within,
                "Held-out EV within rollouts: above 0 is useful for steps. Among weights with equal Brier, "
                "those with the highest are kept.",
            ),
        ),
        tables=(_fitted_on, _label_sources, _recovery),
        absent="The fit's evaluations were not given.",
    ),
)
