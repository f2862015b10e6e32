"""The critic report as a page: report.json to drawings, tables and sentences that say how to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from critics import gate
from critics.located import LARGE_FALL
from critics.quality import NUM_POSITIONS, SLICE_METRICS
from critics.report import REFERENCE_METRICS
from pipeline.report import Dialogue, DialogueStep, Drawing, Section, Table, Text, page

READINGS = {
    "ev": "share of the differences between states explained; 0 is useless, 1 perfect",
    "ev_within": "the same inside one rollout; at most 0 is useless for steps",
    "rho_a": "correlation of the critic's step advantages with the true ones",
    "sign_agreement": "share of the steps that are clear with so many continuations, whose direction it sees",
    "flattening": "spread of its advantages over the true spread; far below 1 is flat",
    "slope_a": "slope of its advantages on the true ones",
    "adv_rmse": "typical error of one step advantage",
    "rmse": "typical distance to the true chance",
    "mae": "mean distance to the measured chance; continuations' noise included",
    "bias": "mean of predicted minus measured",
    "brier": "mean squared error against single samples; lower is better",
    "nll": "mean negative log-likelihood of single samples, nats",
    "skill_over_task_rate": "Brier gained over the task's own success rate",
    "skill_over_constant": "Brier gained over the best constant",
    "skill_over_position": "Brier gained over the position alone",
    "ece": "calibration error, 15 equal-mass bins; the true one lies in the interval",
    "ece_floor": "what a perfect critic would show with as many samples",
    "ece_excess": "calibration error minus its floor, which the gate asks about",
    "reliability": "Brier lost to miscalibration; noise adds to it",
    "resolution": "Brier gained by telling states apart; noise adds to it",
    "uncertainty": "Brier of the best constant",
    "logit_slope": "1 if neither over- nor underconfident",
    "logit_intercept": "0 if unbiased",
    "cov_a": "covariance of step advantages with the true ones; at 0 or below steps mislead",
    "spearman_a": "rank correlation of advantages; not debiased, so too low",
    "auroc": "chance that a success is ranked above a failure",
    "auroc_within_task": "AUROC within one task",
    "auprc_within_task": "of a success: how many succeed of its task's samples that rank as high or higher",
    "auprc": "area under precision and recall",
    "p_where_lost": "mean prediction where the solver proves that nothing can succeed",
    "share_above_solver": "share of states predicted more than .05 above the best possible chance",
    "sibling_top1": "share of sets whose best next step, as measured, it names; a perfect critic misses some",
    "sibling_chance": "the same of a blind choice",
    "sibling_excess": "the difference of these two, which the gate asks about; grows with continuations",
    "sibling_reference": "the same of some of the continuations, judged by the others",
    "sibling_reference_excess": "and its difference to a blind choice: what is there to reach",
    "sibling_pairs": "of two clearly different next steps it prefers the better (a coin: .5)",
    "improvement_variance": "spread of the true values of next steps: what there is to gain",
    "improvement_covariance": "how much of it following the critic would gain",
    "exact": "first error of the rollouts that have one, found at the step",
    "within_one": "found at the step or next to it",
    "none": "rollouts without an error in which it sees none",
    "f1": "2 ab / (a + b) of `exact` and `none`",
}


def report_page(report: Mapping[str, Any], *, title: str = "Critic report") -> str:
    """Returns report.html, a pure function of `build_report`'s result."""
    return page(title, report_sections(report))


def report_sections(report: Mapping[str, Any]) -> list[Section]:
    """Returns the sections of the page: verdict first, then what supports it."""
    return [
        _verdict_section(report),
        _calibration_section(report),
        _values_section(report),
        _steps_section(report),
        _siblings_section(report),
        _probes_section(report),
        _fit_section(report),
        _labels_section(report),
        _samples_section(report),
        _measures_section(report),
        _notes_section(report),
    ]


def _cell(numbers: Mapping[str, float | None], digits: int = 3) -> str:
    if numbers["value"] is None:
        return "undefined"
    text = f"{numbers['value']:.{digits}f}"
    if not _has_bounds(numbers):
        return f"{text} [no bounds]"
    return f"{text} [{numbers['low']:.{digits}f}, {numbers['high']:.{digits}f}]"


def _has_bounds(numbers: Mapping[str, float | None]) -> bool:
    """Returns whether both bounds are known: else nobody knows how exact the value is."""
    return all(math.isfinite(_number(numbers[side])) for side in ("low", "high"))


def _number(x: float | None) -> float:
    return math.nan if x is None else x


def _verdict_section(report: Mapping[str, Any]) -> Section:
    words = {True: "passed", False: "FAILED"}
    conditions = report["gate"]["conditions"]
    rows = tuple((c["name"], words.get(c["passed"], c["passed"]), c["asks"], c["reason"]) for c in conditions)
    size = report["sizes"]["bare"]
    basis = (
        f"Judged on {size['num_states']} bare states of {size['num_rollouts']} rollouts, "
        f"{size['num_tasks']} tasks, on none of which it was fitted, of {size['num_clusters']} clusters "
        f"(those of `val` are of the training split); {size['num_continuations']} fresh continuations in "
        "all. Brackets are 95 % intervals from resampling clusters."
    )
    table = Table(("condition", "result", "what it asks", "what was found"), rows, "The gate")
    return Section(
        "Verdict",
        (Text(report["opening"], "pass" if report["passed"] else "fail"), table, Text(basis, "note")),
    )


def _calibration_section(report: Mapping[str, Any]) -> Section:
    plots = plots_module()
    bins, curves = report["reliability"], report["calibration_curves"]
    floor = _number(report["measures"]["bare"]["ece_floor"]["value"])
    observed = [bin_["observed"] for bin_ in bins]
    middle, low, high = _bounded(observed)
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
    if unknown := sum(not _has_bounds(interval) for interval in observed):
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


def _bounded(values: Sequence[Mapping[str, float | None]]) -> tuple[list[float], list[float], list[float]]:
    """Returns value, low and high of each interval; without both bounds no bar: say so by `_named`."""
    middle = [_number(value["value"]) for value in values]
    low, high = (
        [_number(value[side]) if _has_bounds(value) else m for value, m in zip(values, middle, strict=True)]
        for side in ("low", "high")
    )
    return middle, low, high


def _named(names: Sequence[str], values: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Returns the names of rows; a point without a bar must not pass for an exact one."""
    return [
        name if value["value"] is None or _has_bounds(value) else f"{name} (no bounds)"
        for name, value in zip(names, values, strict=True)
    ]


def plots_module() -> Any:
    """Returns `pipeline.report.plots`; imported late because only pages need it."""
    from pipeline.report import plots

    return plots


def _values_section(report: Mapping[str, Any]) -> Section:
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
            middle, low, high = _bounded(values)
            if all(math.isnan(m) for m in middle):
                continue  # e.g. one audited state of each rollout in each part
            prefix = "level " if kind == "level" else ""
            names = [f"{prefix}{row['name']} ({row['num_states']})" for row in rows]
            svg = plots.points(f"{metric}-{kind}", _named(names, values), middle, low, high, x_label=name)
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
        (row["name"], *(_cell(row[metric], 2) for metric in REFERENCE_METRICS)) for row in references
    )
    caption = (
        "Each reference has an advantage: it knows outcomes of the audited tasks, or was fitted on them. The "
        "solver's V* is the chance of the best play there is: a bound from above, not an estimate of this "
        "policy's. Far better on tasks it was fitted on than on unseen ones: it knows them by heart."
    )
    of_each = ("Brier (lower is better)", "EV", "EV within", "rho_A", "RMSE", "AUROC", "ECE above its floor")
    blocks.append(Table(("estimate", *of_each), baseline_rows, caption))
    blocks.append(_bias_drawing(report["bias_by_level_and_position"]))
    slice_rows = tuple(
        (
            f"{row['kind']} {row['name']}",
            str(row["num_states"]),
            str(row["num_tasks"]),
            *(_cell(row[metric], 2) for metric in SLICE_METRICS),
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
        mark = "?" if not _has_bounds(bias) else "*" if bias["low"] > 0 or bias["high"] < 0 else ""
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


def _siblings_section(report: Mapping[str, Any]) -> Section:
    title = "Does it know the better of two next steps?"
    found = report["siblings"]
    blocks: list[Any] = []
    if not found["num_sets"]:
        blocks.append(Text("No sets of sibling steps were played.", "note"))
    else:
        names = {
            "sibling_chance": "a blind choice",
            "sibling_top1": "this critic",
            "sibling_reference": f"{found['reference_size']} continuations",
        }
        values = [found[name] for name in names]
        middle, *bounds = _bounded(values)
        svg = plots_module().points(
            "siblings",
            _named(list(names.values()), values),
            middle,
            *bounds,
            x_label="best next step named",
            level=None,
        )
        blocks.append(
            Drawing(
                svg,
                f"{found['num_sets']} sets of steps from one state each, whose chances differ. Right of a "
                "blind choice it knows good steps; what continuations reach is about what there is to know.",
            )
        )
        rows = tuple((name, _cell(found[name]), words) for name, words in READINGS.items() if name in found)
        blocks.append(Table(("measure", "value", "reading"), rows))
    located = report["first_error"]
    rows = tuple(
        (name, _cell(located[name]), READINGS[name]) for name in ("exact", "within_one", "none", "f1")
    )
    caption = (
        f"First error: the first step that lowers the value by more than {LARGE_FALL:g}, against "
        f"the verifiers' ({located['num_wrong']} rollouts with one, {located['num_right']} without). "
        "Not what the critic is for."
    )
    blocks.append(Table(("measure", "value", "reading"), rows, caption))
    return Section(title, tuple(blocks))


def _probes_section(report: Mapping[str, Any]) -> Section:
    title = "Is it fooled by form?"
    found = report["probes"]
    blocks: list[Any] = []
    if not any(row["num_states"] for row in found):
        blocks.append(Text("No probes were made.", "note"))
    else:
        values = [row["change"] for row in found]
        middle, *bounds = _bounded(values)
        names = [f"{row['kind']} ({row['num_states']})" for row in found]
        svg = plots_module().points(
            "probes", _named(names, values), middle, *bounds, x_label="change of the value"
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
                _cell(row["change"]),
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
        (name.replace("_", " "), _cell(of["given_truth"]), _cell(of["left_over"]))
        for name, of in report["length_correlations"].items()
    )
    caption = (
        "Not judged. Given the truth: what the value has to do with length beyond success. It is 0 for "
        "a critic that is right up to noise, not for a calibrated one that sees little else. Left over: the "
        "error's correlation with length, 0 where all is made of the length that there is to make."
    )
    blocks.append(Table(("", "given the truth", "left over"), lengths, caption))
    return Section(title, tuple(blocks))


def _steps_section(report: Mapping[str, Any]) -> Section:
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


def _fit_section(report: Mapping[str, Any]) -> Section:
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


def _samples_section(report: Mapping[str, Any]) -> Section:
    plots = plots_module()
    blocks: list[Any] = []
    for place, sample in enumerate(report["sample_rollouts"]):
        outcome = {None: "not graded"}.get(
            sample["reward"], "solved" if (sample["reward"] or 0) >= 0.5 else "failed"
        )
        title = f"Level {sample['level']}, {sample['split']}, {sample['context']}: {outcome}"
        svg = plots.value_path(
            f"path-{place}",
            sample["values"],
            sample["statuses"],
            reward=sample["reward"],
            audited=[tuple(entry) for entry in sample["audited"]],
        )
        caption = (
            f"{title} (rollout {sample['rollout_id'][:12]}). The line should run through the bars of fresh "
            "continuations, and fall where the verifier marks an error."
        )
        blocks.append(Drawing(svg, caption))
        steps = zip(sample["texts"], sample["values"], sample["statuses"], sample["messages"], strict=True)
        blocks.append(Dialogue("Its steps", tuple(DialogueStep(*step) for step in steps)))
    if not blocks:
        blocks = [Text("None were asked for.", "note")]
    return Section("Rollouts with their values", tuple(blocks))


def _measures_section(report: Mapping[str, Any]) -> Section:
    contexts = [context for context in report["measures"] if report["sizes"][context]["num_states"]]
    rows = tuple(
        (name, *(_cell(report["measures"][context][name]) for context in contexts), READINGS.get(name, ""))
        for name in report["measures"]["bare"]
    )
    caption = "Debiased for the finite number of continuations where a reading does not say otherwise."
    return Section("All measures", (Table(("measure", *contexts, "reading"), rows, caption),))


AUDIT_READINGS = {
    "base_rate": "success of all samples",
    "guided_share": "labels of states after feedback",
    "noise_share": "of the differences between continued states, what is chance: no critic can fit it",
    "noise_share_one_sample": "the same if each had one sample, as an own outcome is",
    "num_duplicates": "labels of a state that another label is of too: fitted more than once",
    "duplicate_share": "of all labels",
}


def _labels_section(report: Mapping[str, Any]) -> Section:
    title = "What was it fitted to?"
    labels, fit = report["labels"], report["fit"]
    if not labels:
        return Section(title, (Text("The labels' report was not given.", "note"),))
    blocks: list[Any] = []
    if fit:
        words = f"Fitted on {_count(fit['labelled_rollouts']['fit'])} rollouts with labels"
        if number := fit.get("continuations"):
            words += f" and {_count(number)} continuations of theirs, each with its own outcome at its states"
        if number := fit.get("ranked_sets"):
            words += f", and {_count(number)} sets of sibling steps in order"
        blocks.append(Text(words + "."))
    by_source = labels.get("num_by_source") or {}
    if by_source:
        svg = plots_module().shares("labels", list(by_source), list(by_source.values()), x_label="labels")
        caption = (
            "Labels by where they come from. Continuations say most: they were sampled for the state. An own "
            "outcome is one sample of it, recovery none: an estimate from like states."
        )
        blocks.append(Drawing(svg, caption))
    if found := labels.get("audit"):
        rows = tuple(
            (name.replace("_", " "), _count(found[name]), reading) for name, reading in AUDIT_READINGS.items()
        )
        blocks.append(Table(("measure", "value", "reading"), rows))
        costs = tuple(
            (
                source,
                *(_count(entry[name]) for name in ("labels", "samples", "tokens")),
                _count(entry["tokens"] / entry["samples"] if entry["samples"] else None),
            )
            for source, entry in found["sources"].items()
        )
        header = ("samples from", "labels", "samples", "tokens", "tokens a sample")
        caption = "What they cost. Own outcomes are of rollouts that the rollouts stage has paid for."
        blocks.append(Table(header, costs, caption))
    codes = labels.get("codes") or {}
    if codes:
        recovered = tuple(
            (
                code,
                _count(entry["num_continuations"]),
                _count(entry["num_tasks"]),
                _cell({"value": entry["recovery_rate"], "low": entry["low"], "high": entry["high"]}, 2),
                "yes" if entry["counted"] else "no",
            )
            for code, entry in codes.items()
        )
        header = ("latest error", "continuations", "tasks", "success from there", "counts for targets")
        blocks.append(
            Table(header, recovered, "How often the policy recovers, from the labels' fresh continuations")
        )
    plain = [
        (name, _count(labels[name]))
        for name in sorted(labels)
        if isinstance(labels[name], int | float | str) and not isinstance(labels[name], bool)
    ]
    if plain:
        blocks.append(Table(("labels", ""), tuple(plain)))
    return Section(title, tuple(blocks))


def _count(x: float | str | None) -> str:
    """Returns a count with thousands apart, a share with three digits."""
    if isinstance(x, float):
        return f"{x:.3f}" if abs(x) < 10 else f"{x:,.0f}"
    return "undefined" if x is None else f"{x:,}" if isinstance(x, int) else x


def _notes_section(report: Mapping[str, Any]) -> Section:
    notes: list[Text | Table] = [
        Text(
            f"Values estimate the chance of success of policy {report['policy_digest']} and no other; critic "
            f"{report['critic_digest']}. A pass holds for that policy, its token "
            "budget and these families only."
        ),
        Text(
            "How it fares while the actor moves away from that policy is measured in the actor's stage.",
            "note",
        ),
    ]
    return Section("What it is, and is not", tuple(notes))
