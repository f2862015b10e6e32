"""The actor's report and its page: how it learned, and whether its critic still knew it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report import Drawing, Section, Text, page, plots, readings
from stages.wiring.actor_curves import learning_curve, reliance_curve, spent_curve
from stages.wiring.refusals import override_words
from stages.wiring.safety_stops import kl_to_start
from stages.wiring.time_split import time_curve

DRIFT = "critic_drift/"
LEARNING = {
    "val": "val/first_try",
    "first_try": "rollouts/first_try",
    "with_feedback": "rollouts/with_feedback",
    "retried_first_try": "retried/first_try",
    "retried_with_feedback": "retried/with_feedback",
    "reliance": "retried/reliance",
    "stripped": "stripped/count",
    "told_by_feedback": "stripped/left_out/told_by_feedback",
    "rollouts": "rollouts/count",
    "continuations": "continuations/count",
    "mixed_sets": "sets/kept_mixed",
    "tokens": "response_length/mean",
    "steps": "steps/mean",
}
"""Name in the report -> metric of an iteration."""
DRAWINGS = {
    ("bias",): ("value minus outcome", "Bias on the actor's fresh rollouts; 0 is right."),
    ("cov_a",): (
        "covariance of step advantages",
        "The critic's against the present actor's, of fresh continuations: steps are off where its "
        "interval is not above 0, or where clearly too few signs agree. Its size follows how much steps "
        "differ at all.",
    ),
    ("rho_a", "sign_agreement", "ev_within"): (
        "agreement (1: perfect)",
        "Step advantages of the critic against the present actor's. Bands or bars are 95 % intervals; a "
        "point without one has no bounds, so it is no exact figure.",
    ),
}
"""The drift's measures by drawing: the label of y, and the caption."""
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


def actor_report(
    history: Sequence[Mapping[str, Any]],  # of metrics.jsonl
    planned: int,  # updates that were asked for
    *,
    refreshes: Sequence[str] = (),  # runs that made another critic, as folders of the actor's run
    refused_refreshes: Sequence[str] = (),  # those that could not
    critic_gate: Mapping[str, Any] | None = None,  # by `refusals.stamp_of`; None without a critic
    last_look: Mapping[str, float] | None = None,  # by `sampling.first_try`, after the last iteration
) -> dict[str, Any]:
    """Returns report.json of the actor: updates, its learning and the drift of its critic by iteration.

    An entry's `kl` is the KL to the starting policy of what sampled the iteration, if the loss measures one.
    """
    looks = [entry for entry in history if "rollouts/count" in entry]
    drift = [
        {"iteration": look["iteration"]} | found
        for look in looks
        if (found := {name.removeprefix(DRIFT): x for name, x in look.items() if name.startswith(DRIFT)})
    ]
    for entry in drift if kl_to_start(history) is not None else ():
        before = [line for line in history if line["iteration"] < entry["iteration"]]
        entry["kl"] = kl_to_start(before) or 0.0
    return {
        "updates": max((entry["update"] for entry in history if "update" in entry), default=0),
        "updates_planned": planned,
        "learning": [
            {"iteration": look["iteration"]} | {k: look[v] for k, v in LEARNING.items() if v in look}
            for look in looks
        ],
        "last_look": {"iteration": 1 + looks[-1]["iteration"], "val": last_look[LEARNING["val"]]}
        if last_look and looks
        else None,
        "drift": drift,
        "refreshes": list(refreshes),
        "refused_refreshes": list(refused_refreshes),
        "critic_gate": None if critic_gate is None else dict(critic_gate),
    }


def actor_page(report: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Returns report.html of the actor, a pure function of its report and of those beside it.

    It opens with the critic's failed gate if training went on in spite of it.
    """
    stamp, drift = report["critic_gate"], report["drift"]
    words = "" if stamp is None else override_words(stamp)
    drawings = [
        Drawing(plots.curves(measures[0], drift, measures, x="iteration", y_label=y, level=0.0), caption)
        for measures, (y, caption) in DRAWINGS.items()
    ]
    curves = [
        learning_curve(report, leads=True),
        spent_curve(report, others),
        reliance_curve(report),
        time_curve(report),
    ]
    ends: dict[str, dict[str, str]] = {"first": {}, "last": {}}
    for name in READINGS:
        if found := [entry for entry in drift if isinstance(entry.get(name), int | float)]:
            for which, entry in zip(ends, (found[0], found[-1]), strict=True):
                ends[which][name] = f"{entry[name]:.3f} (iteration {entry['iteration']})"
    sections = [
        Section("How it learned", [*([Text(words, "fail")] * bool(words)), *curves]),
        Section(
            "Does the critic still know the actor?",
            [Text(_drift_words(report)), *drawings, readings(ends, READINGS)],
        ),
    ]
    return page("Actor", sections)


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
        kl = f"{drift[-1]['kl']:.4f} nats per token before the last iteration (median of three updates)"
    else:
        kl = "not measured, since the loss has no KL term (actor.credit.kl)"
    words += f" KL to the starting policy: {kl}."
    made = {"Another critic was": report["refreshes"], "No critic could be": report["refused_refreshes"]}
    return words + "".join(f" {what} made in {', '.join(runs)}." for what, runs in made.items() if runs)
