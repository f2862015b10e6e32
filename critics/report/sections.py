"""The sections of the report's page, as data: a title, drawings with how to read them, measures, tables."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from critics.audit.first_error import LARGE_FALL
from critics.audit.slices import SLICE_METRICS
from critics.report import charts
from critics.report.build import REFERENCE_METRICS
from critics.report.charts import Report
from pipeline.report import Table
from pipeline.statistics import Interval, interval_words


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the page."""

    title: str  # a question
    charts: Mapping[Callable[[Report], str], str] = field(default_factory=dict)  # drawing -> how to read it
    measures: Mapping[str, str] = field(default_factory=dict)  # name -> how to read it
    caption: str = ""  # of the measures
    tables: tuple[Callable[[Report], Table], ...] = ()  # shown where they have rows
    absent: str = ""  # said where the section has neither drawing nor measure


def cell(numbers: Mapping[str, float | None], digits: int = 3) -> str:
    """Returns a figure with its interval as a cell of a table; a null is undefined."""
    known = (math.nan if (x := numbers[name]) is None else x for name in ("value", "low", "high"))
    return interval_words(Interval(*known), digits)


def _count(x: float | None) -> str:
    """Returns a count with thousands apart, a share with three digits."""
    if isinstance(x, float):
        return f"{x:.3f}" if abs(x) < 10 else f"{x:,.0f}"
    return "undefined" if x is None else f"{x:,}"


def _references(report: Report) -> Table:
    titles = ("Brier (lower is better)", "EV", "EV within", "rho_A", "RMSE", "AUROC", "ECE above its floor")
    rows = tuple((r["name"], *(cell(r[m], 2) for m in REFERENCE_METRICS)) for r in report["references"])
    caption = (
        "References, each with an advantage: it knows outcomes of the audited tasks or states, or was "
        "fitted on them. Trees on what is visible say how much a critic that reads only the dialogue could "
        "explain; told the errors, how much a verifier would add. Continuations are noisy: a good critic "
        "may beat them. V* bounds from above. Far better on tasks it was fitted on: it knows them by heart."
    )
    return Table(("estimate", *titles), rows, caption)


def _slices(report: Report) -> Table:
    rows = tuple(
        (
            f"{r['kind']} {r['name']}",
            *(str(r[name]) for name in ("num_states", "num_tasks")),
            *(cell(r[metric], 2) for metric in SLICE_METRICS),
        )
        for r in report["slices"]
    )
    header = ("slice", "states", "tasks", "EV", "EV within", "rho_A", "bias", "RMSE", "AUROC")
    caption = "All audited states, values as frozen. How long a rollout becomes only hindsight knows."
    return Table(header, rows, caption)


def _probes(report: Report) -> Table:
    words = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}
    rows = tuple(
        (r["kind"], r["means"], r["expects"], cell(r["change"]), words[r["holds"]], r["why"])
        for r in report["probes"]
    )
    return Table(("probe", "what changes", "must", "change of the value", "", "looks for"), rows)


def _lengths(report: Report) -> Table:
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


def _fitted_on(report: Report) -> Table:
    parts = report["fit"].get("labelled_rollouts", {})
    rows = tuple((f"labelled rollouts: {name}", _count(number)) for name, number in parts.items())
    if number := report["fit"].get("continuations"):
        rows += (("continuations, each with its own outcome at its states", _count(number)),)
    return Table(("fitted on", ""), rows)


def _label_sources(report: Report) -> Table:
    found = report["labels"].get("audit", {"sources": {}})
    rows = tuple(
        (
            source,
            *(_count(of[name]) for name in ("labels", "samples", "tokens")),
            _count(of["tokens"] / of["samples"] if of["samples"] else None),
        )
        for source, of in found["sources"].items()
    )
    shares = ("base_rate", "guided_share", "noise_share", "noise_share_one_sample", "duplicate_share")
    told = ", ".join(f"{name.replace('_', ' ')} {_count(found.get(name))}" for name in shares)
    caption = (
        f"Labels of all clusters by what they come from. Of them: {told}. The noise share is chance, "
        "which no critic can fit. Own outcomes are of rollouts that were paid for anyway."
    )
    return Table(("samples from", "labels", "samples", "tokens", "tokens a sample"), rows, caption)


def _recovery(report: Report) -> Table:
    rows = tuple(
        (
            code,
            *(_count(of[name]) for name in ("num_continuations", "num_tasks")),
            cell(of | {"value": of["recovery_rate"]}, 2),
        )
        for code, of in report["labels"].get("codes", {}).items()
    )
    caption = "How often the policy recovers in bare states, from the labels' fresh continuations"
    return Table(("latest error", "continuations", "tasks", "success from there"), rows, caption)


_EV = " (number of states). 1 is perfect; where a bar reaches 0, one number would do as well."
SECTIONS = (
    Part(
        "Are its percentages right?",
        charts={
            charts.reliability: "Judged states, level refitted. On the diagonal a stated 70 % happens 7 "
            "times in 10; below it the critic is too hopeful. The curve is the best one that never falls "
            "(isotonic). A hollow point has no bounds.",
            charts.biases: "Bias of all bare states as frozen: mean of predicted minus measured, and the "
            "number of states. Red is too hopeful, blue too gloomy; a star: chance alone does not explain "
            "it (95 %); a question mark: no bounds are known. A bias that grows along the budget rewards or "
            "punishes going on.",
        },
        measures={
            "bias": "mean of predicted minus measured; the level is refitted, so about 0",
            "level_bias": "the same with the level as frozen, which the gate asks about",
            "ece": "calibration error, 15 equal-mass bins; the true one lies in the interval",
            "ece_floor": "what a perfect critic would show with as many samples",
            "ece_excess": "calibration error minus its floor, which the gate asks about",
            "logit_slope": "1 if neither over- nor underconfident",
            "logit_intercept": "0 if unbiased",
            "reliability": "Brier lost to miscalibration; noise adds to it",
            "resolution": "Brier gained by telling states apart; noise adds to it",
            "uncertainty": "Brier of the best constant",
        },
    ),
    Part(
        "Does it tell states apart?",
        charts={
            charts.states: "Each point is a state; right ones lie on the diagonal. Sideways scatter is "
            "partly the noise of finitely many continuations.",
            charts.ev_by_position: "Explained variance by share of the budget used" + _EV,
            charts.ev_by_level: "Explained variance by level of the task" + _EV,
            charts.ev_within_by_level: "Explained variance within rollouts by level of the task" + _EV,
        },
        measures={
            "ev": "share of the differences between states explained; 0 is useless, 1 perfect",
            "ev_within": "the same inside one rollout; at most 0 is useless for steps",
            "rmse": "typical distance to the true chance",
            "mae": "mean distance to the measured chance; continuations' noise included",
            "brier": "mean squared error against single samples; lower is better",
            "nll": "mean negative log-likelihood of single samples, nats",
            "skill_over_task_rate": "Brier gained over the task's own success rate",
            "skill_over_constant": "Brier gained over the best constant",
            "skill_over_position": "Brier gained over the position alone",
            "auroc": "chance that a success is ranked above a failure; a graded reward is a fraction of a "
            "success",
            "auprc": "area under precision and recall",
            "auroc_within_task": "AUROC within one task",
            "auprc_within_task": "of a success: how many succeed of its task's samples that rank as high or "
            "higher",
            "p_where_lost": "mean prediction where the solver proves that nothing can succeed",
            "share_above_solver": "share of states predicted more than .05 above the best possible chance",
        },
        tables=(_references, _slices),
    ),
    Part(
        "Does it tell steps apart?",
        charts={
            charts.steps: "Each point is one step between two audited states. Along the diagonal its step "
            "credit is right; along a flatter line right in sign, too small; a cloud is noise. Upper left "
            "and lower right have the wrong sign.",
            charts.siblings: "Several next steps of one state, the measured chances of which differ. Right "
            "of a blind choice the critic knows good steps. Continuations of each step are noisy, so a good "
            "critic may beat them.",
        },
        measures={
            "rho_a": "correlation of the critic's step advantages with the true ones",
            "cov_a": "covariance of the same; at 0 or below steps mislead",
            "adv_rmse": "typical error of one step advantage",
            "sign_agreement": "share of the steps that are clear with so many continuations, whose "
            "direction it sees",
            "flattening": "spread of its advantages over the true spread; far below 1 is flat",
            "slope_a": "slope of its advantages on the true ones",
            "spearman_a": "rank correlation of advantages; not debiased, so too low",
            "sibling_top1": "share of sets whose best next step, as measured, it names; a perfect critic "
            "misses some",
            "sibling_chance": "the same of a blind choice",
            "sibling_excess": "the difference of these two, which the gate asks about; grows with "
            "continuations",
            "sibling_reference": "the same of some of the continuations, judged by the others",
            "sibling_reference_excess": "and its difference to a blind choice; noisy, so no bound",
            "sibling_pairs": "of two clearly different next steps it prefers the better (a coin: .5)",
            "improvement_variance": "spread of the true values of next steps: what there is to gain",
            "improvement_covariance": "how much of it following the critic would gain",
        },
        absent="No two neighbouring states were audited, and no sets of sibling steps were played.",
    ),
    Part(
        "Is it fooled by form?",
        charts={
            charts.probes: "Mean change of the value when one step is changed (number of states). The last "
            "two must lie below 0, the others must not lie above it. Words that change nothing should move "
            "nothing."
        },
        tables=(_probes, _lengths),
        absent="No probes were made.",
    ),
    Part(
        "Does it see the first error?",
        measures={
            "exact": "first error of the rollouts that have one, found at the step",
            "within_one": "found at the step or next to it",
            "none": "rollouts without an error in which it sees none",
            "f1": "2 ab / (a + b) of `exact` and `none`",
        },
        caption=f"The first step that lowers the value by more than {LARGE_FALL:g}, against the verifiers' "
        "first error, in bare rollouts. Not what the critic is for.",
    ),
    Part(
        "How was it fitted, and to what?",
        charts={
            charts.fit: "Held-out Brier, +- one standard error, on the clusters that decide when to stop, "
            "level refitted: not to be compared with the audit's. Fitting stops when several looks gain "
            "less than a standard error.",
            charts.fit_within: "Held-out EV within rollouts: above 0 is useful for steps. Among weights "
            "with equal Brier, those with the highest are kept.",
        },
        tables=(_fitted_on, _label_sources, _recovery),
        absent="The fit's evaluations were not given.",
    ),
)
