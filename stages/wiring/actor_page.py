"""The actor's report: how it learned, and whether its critic still knew it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stages.wiring.refusals import override_words

DRIFT = "critic_drift/"
NOT_MEASURED = "not measured"
FREE = ("bias", "slope", "skill", "auroc", "correction_slope", "correction_shift", "alpha")
PAID = ("cov_a", "rho_a", "sign_agreement", "ev_within")
STEPS_CAPTION = (
    "Step advantages of the critic against the present actor's. Bands or bars are 95 % intervals; a point "
    "without one has no bounds, so it is no exact figure."
)
COVARIANCE_CAPTION = (
    "Covariance of the critic's step advantages with the present actor's: steps are off where its interval "
    "is not above 0, or where clearly too few signs agree. Its size follows how much steps differ at all."
)
READINGS = {
    "bias": "mean of value minus outcome; 0 is right",
    "slope": "log-odds of success on those of the value; 1 is right",
    "skill": "Brier gained over the best constant",
    "auroc": "chance that a success is ranked above a failure",
    "correction_slope": "of the log-odds of the values that credit was given with; 1 as frozen",
    "correction_shift": "likewise; 0 as frozen",
    "alpha": "weight of the step advantages that the iteration was trained with",
    "cov_a": "covariance of step advantages with those of fresh continuations; at or below 0 steps are off",
    "rho_a": "the correlation of the same",
    "sign_agreement": "share of clear steps of which it sees the direction",
    "ev_within": "explained variance within a rollout",
}


def actor_report(
    history: Sequence[Mapping[str, Any]],
    num_updates: int,
    planned: int,
    *,
    refreshes: Sequence[str] = (),
    refused_refreshes: Sequence[str] = (),
    critic_gate: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns report.json of the actor: updates, and the drift of its critic iteration by iteration.

    Args:
        history: of metrics.jsonl.
        num_updates: taken.
        planned: asked for.
        refreshes: runs that made its critic anew, as folders of the actor's run.
        refused_refreshes: those that could not, for the quality of what it plays or of the fit.
        critic_gate: `stages.wiring.refusals.stamp_of` the critic that it began with; None without a critic.

    Returns:
        `updates`, `updates_planned`, `drift`, `refreshes`, `refused_refreshes`, `critic_gate`, and
        `clean_up_to_kl`: the largest KL to the starting policy at which a paid check did not find the steps
        off, before the first that did; None if none did, NOT_MEASURED if the loss had no KL term and so
        nobody knows how far they were.
    """
    looks = [entry for entry in history if "rollouts/count" in entry]
    drift = [
        {"iteration": entry["iteration"]}
        | {name.removeprefix(DRIFT): value for name, value in entry.items() if name.startswith(DRIFT)}
        for entry in looks
        if any(name.startswith(DRIFT) for name in entry)
    ]
    checks = [entry for entry in drift if "steps_off" in entry]
    clean = list(itertools.takewhile(lambda entry: not entry["steps_off"], checks))
    return {
        "updates": num_updates,
        "updates_planned": planned,
        "drift": drift,
        "refreshes": list(refreshes),
        "refused_refreshes": list(refused_refreshes),
        "critic_gate": None if critic_gate is None else dict(critic_gate),
        "clean_up_to_kl": max(
            (entry["kl"] for entry in clean if "kl" in entry), default=NOT_MEASURED if clean else None
        ),
    }


def actor_page(report: Mapping[str, Any]) -> str:
    """Returns report.html of the actor, a pure function of the report: the curves of the drift monitor.

    It opens with the critic's failed gate if training went on in spite of it.
    """
    from pipeline.report import Drawing, Section, Table, Text, page
    from pipeline.report.plots import Line, lines

    drift, stamp = report["drift"], report["critic_gate"]
    opening: list[Any] = []
    if stamp is not None and (said := override_words(stamp)):
        opening = [Text(said, "fail")]
    if not drift:
        note = Text(
            "This credit mode has no critic, so there is nothing to watch."
            if stamp is None
            else "No rollout could be checked, so nothing is known of the critic's drift.",
            "note",
        )
        return page("Actor", [Section("Critic's drift", (*opening, note))])

    def curve(name: str, x: str = "iteration") -> Line:
        points = [entry for entry in drift if isinstance(entry.get(name), int | float) and x in entry]
        points.sort(key=lambda entry: float(entry[x]))
        low, high = ([entry.get(f"{name}_{side}", math.nan) for entry in points] for side in ("low", "high"))
        return Line(name, [entry[x] for entry in points], [entry[name] for entry in points], low, high)

    level = lines(
        "level",
        [line for name in ("bias", "skill") if (line := curve(name)).x],
        x_label="iteration",
        y_label="on the actor's fresh rollouts",
        level=0.0,
    )
    blocks: list[Any] = [
        Drawing(level, "Bias (value minus outcome) and Brier skill of the values that credit was given with.")
    ]
    ranking = [line for name in ("slope", "auroc") if (line := curve(name)).x]
    if ranking:
        svg = lines(
            "ranking", ranking, x_label="iteration", y_label="on the actor's fresh rollouts", level=1.0
        )
        blocks.append(Drawing(svg, "Slope in log-odds (1 is right) and AUROC."))
    if (deciding := curve("cov_a")).x:
        svg = lines(
            "covariance", [deciding], x_label="iteration", y_label="against fresh continuations", level=0.0
        )
        blocks.append(Drawing(svg, COVARIANCE_CAPTION))
    for x, x_label in (("iteration", "iteration"), ("kl", "KL to the starting policy, nats per token")):
        steps = [line for name in ("rho_a", "sign_agreement", "ev_within") if (line := curve(name, x)).x]
        if steps:
            svg = lines(
                f"steps-{x}", steps, x_label=x_label, y_label="against fresh continuations", level=0.0
            )
            blocks.append(Drawing(svg, STEPS_CAPTION))
    last = drift[-1]
    rows = []
    for name in (*FREE, *PAID):
        found = [entry for entry in drift if isinstance(entry.get(name), int | float)]
        if found:
            cells = (f"{entry[name]:.3f} (iteration {entry['iteration']})" for entry in (found[0], found[-1]))
            rows.append((name, *cells, READINGS[name]))
    blocks.append(Table(("measure", "first", "last", "reading"), tuple(rows)))
    off = [str(entry["iteration"]) for entry in drift if entry.get("steps_off")]
    words = (
        f"Step advantages were found off in iterations {', '.join(off)}."
        if off
        else "No check found step advantages off."
        if any("steps_off" in entry for entry in drift)
        else "No check by fresh continuations was made (actor.credit.drift.paid_every)."
    )
    kl = (
        f" KL to the starting policy before the last iteration: {last['kl']:.4f} nats a token (median of "
        "three updates)."
        if "kl" in last
        else " KL to the starting policy: not measured, since the loss has no KL term (actor.credit.kl)."
    )
    if isinstance(report["clean_up_to_kl"], float):
        kl += f" No check found its steps off up to a KL of {report['clean_up_to_kl']:.4f}."
    if report["refreshes"]:
        kl += f" The critic was made anew in {', '.join(report['refreshes'])}."
    if report["refused_refreshes"]:
        kl += f" No critic could be made anew in {', '.join(report['refused_refreshes'])}."
    return page(
        "Actor", [Section("Does the critic still know the actor?", (*opening, Text(words + kl), *blocks))]
    )
