"""The actor's page: how it learned, and whether its critic still knew it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report import Block, Drawing, Section, Table, Text, page
from pipeline.report.plots import Line, lines
from stages.wiring.refusals import override_words

FRESH, CHECKED = "on the actor's fresh rollouts", "against fresh continuations"
KL = "KL to the starting policy, nats per token"
STEPS = (
    "Step advantages of the critic against the present actor's. Bands or bars are 95 % intervals; a point "
    "without one has no bounds, so it is no exact figure."
)
CURVES = (
    ("level", ("bias",), "iteration", FRESH, 0.0, "Bias: value minus outcome; 0 is right."),
    ("slope", ("slope",), "iteration", FRESH, 1.0, "Slope in log-odds; 1 is right."),
    (
        "covariance",
        ("cov_a",),
        "iteration",
        CHECKED,
        0.0,
        "Covariance of the critic's step advantages with the present actor's: steps are off where its "
        "interval is not above 0, or where clearly too few signs agree. Its size follows how much steps "
        "differ at all.",
    ),
    ("steps-iteration", ("rho_a", "sign_agreement", "ev_within"), "iteration", CHECKED, 0.0, STEPS),
    ("steps-kl", ("rho_a", "sign_agreement", "ev_within"), "kl", CHECKED, 0.0, STEPS),
)
"""Of the drift's drawings: name, measures, x, label of y, right level, caption."""
READINGS = {
    "bias": "mean of value minus outcome; 0 is right",
    "slope": "log-odds of success on those of the value; 1 is right",
    "correction_slope": "of the log-odds of the values that credit was given with; 1 as frozen",
    "correction_shift": "of the same; 0 as frozen",
    "alpha": "weight of the step advantages that the iteration was trained with",
    "cov_a": "covariance of step advantages with those of fresh continuations; at or below 0 steps are off",
    "rho_a": "the correlation of the same",
    "sign_agreement": "share of clear steps of which it sees the direction",
    "ev_within": "explained variance within a rollout",
}


def actor_page(report: Mapping[str, Any]) -> str:
    """Returns report.html of the actor, a pure function of the report.

    It opens with the critic's failed gate if training went on in spite of it.
    """
    stamp, drift = report["critic_gate"], report["drift"]
    learned: list[Block] = []
    if stamp is not None and (words := override_words(stamp)):
        learned.append(Text(words, "fail"))
    success = ("val", "first_try", "with_feedback")
    caption = "Success of first tries on val, and of the rollouts that were trained on."
    learned += _curves(report["learning"], "learning", success, "iteration", "success", None, caption)
    watched: list[Block] = [Text(_drift_words(report))]
    for curves in CURVES:
        watched += _curves(drift, *curves)
    rows = []
    for name, reading in READINGS.items():
        if found := [entry for entry in drift if isinstance(entry.get(name), int | float)]:
            cells = (f"{entry[name]:.3f} (iteration {entry['iteration']})" for entry in (found[0], found[-1]))
            rows.append((name, *cells, reading))
    if rows:
        watched.append(Table(("measure", "first", "last", "reading"), tuple(rows)))
    sections = {"How it learned": learned, "Does the critic still know the actor?": watched}
    return page("Actor", [Section(title, tuple(blocks)) for title, blocks in sections.items()])


def _drift_words(report: Mapping[str, Any]) -> str:
    drift = report["drift"]
    if not drift and report["critic_gate"] is None:
        return "This credit mode has no critic, so there is nothing to watch."
    if not drift:
        return "No rollout could be checked, so nothing is known of the critic's drift."
    off = [str(entry["iteration"]) for entry in drift if entry.get("steps_off")]
    words = "No check by fresh continuations was made (actor.credit.drift.paid_every)."
    if any("steps_off" in entry for entry in drift):
        words = "No check found step advantages off."
    if off:
        words = f"Step advantages were found off in iterations {', '.join(off)}."
    if "kl" in drift[-1]:
        words += f" {KL}, before the last iteration: {drift[-1]['kl']:.4f} (median of three updates)."
    else:
        words += " KL to the starting policy: not measured, since the loss has no KL term (actor.credit.kl)."
    if report["refreshes"]:
        words += f" Another critic was made in {', '.join(report['refreshes'])}."
    if report["refused_refreshes"]:
        words += f" No critic could be made in {', '.join(report['refused_refreshes'])}."
    return words


def _curves(
    entries: Sequence[Mapping[str, Any]],
    name: str,
    measures: Sequence[str],
    x: str,
    y_label: str,
    level: float | None,
    caption: str,
) -> list[Drawing]:
    """Returns the drawing of measures along x with their intervals; nothing if none was taken."""
    found = []
    for measure in measures:
        points = [e for e in entries if isinstance(e.get(measure), int | float) and x in e]
        points.sort(key=lambda entry: float(entry[x]))
        low, high = ([e.get(f"{measure}_{side}", math.nan) for e in points] for side in ("low", "high"))
        if points:
            found.append(Line(measure, [e[x] for e in points], [e[measure] for e in points], low, high))
    if not found:
        return []
    return [
        Drawing(lines(name, found, x_label=KL if x == "kl" else x, y_label=y_label, level=level), caption)
    ]
