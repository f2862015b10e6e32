"""Whether a critic is good enough to train an actor with, condition by condition, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from critics.audit.probes import KINDS, MAX_RISE, holds
from pipeline.statistics import MIN_CLUSTERS, Interval, interval_dict, interval_words

NOT_MEASURED: Literal["not measured"] = "not measured"
NOT_JUDGED: Literal["not judged"] = "not judged"
NOTHING_MEASURED = "not measured in this report"
FEW = f"no such change could be made, or in fewer than {MIN_CLUSTERS} clusters"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of the gate.

    Attributes:
        name: of the measure.
        passed: True, False, "not measured", or "not judged": measured, and left to the reader.
        asks: what is asked, in words.
        reason: what was found, in words.
        interval: the measure; None for a yes or no, or when it was not measured.
        threshold: what a bound is compared with; None where there is no interval.
    """

    name: str
    passed: bool | Literal["not measured", "not judged"]
    asks: str
    reason: str
    interval: Interval | None = None
    threshold: float | None = None


def judge(
    measures_by_context: Mapping[str, Mapping[str, Interval]],
    *,
    converged: bool,
    min_advantage_correlation: float = 0.2,
    max_calibration_excess: float = 0.03,
    sibling_excess: Interval | None = None,
    probes: Mapping[str, tuple[Interval, int]] | None = None,
    max_probe_rise: float = MAX_RISE,
    judge_probes: bool = True,
) -> list[Condition]:
    """Returns the gate's conditions: bounds of each context's measures, siblings, probes, convergence.

    Args:
        measures_by_context: context -> `critics.audit.measures.measure`; "bare" always, "guided" if the
            actor trains there.
        converged: whether fitting stopped because it had nothing left to gain.
        min_advantage_correlation: the lower bound of rho_A must exceed this.
        max_calibration_excess: the upper bound of the ECE must stay under its floor plus this.
        sibling_excess: of `critics.audit.siblings.sibling_measures`; None if no sets were played.
        probes: of `critics.audit.probes.probe_changes`; None if none were asked for.
        max_probe_rise: what a cosmetic change may raise p by.
        judge_probes: whether a probe that does not hold fails the gate.

    Raises:
        ValueError: no measures of bare states.
    """
    if "bare" not in measures_by_context:
        raise ValueError(f"the gate judges bare states; got measures of {sorted(measures_by_context)}")
    asked = [
        ("ev", 0.0, "it explains differences between states"),
        ("ev_within", 0.0, "it explains differences within one rollout"),
        ("rho_a", min_advantage_correlation, "its step advantages go with the measured ones"),
        ("skill_over_task_rate", 0.0, "it beats the task's own success rate"),
        ("skill_over_constant", 0.0, "it beats a constant"),
        ("skill_over_position", 0.0, "it beats the position alone"),
    ]
    conditions = []
    for context, measures in measures_by_context.items():
        suffix = "" if context == "bare" else f" ({context})"
        for name, threshold, asks in asked:
            conditions.append(_above(name + suffix, measures[name], threshold, asks + suffix))
        conditions.append(
            _below("ece_excess" + suffix, measures["ece_excess"], max_calibration_excess, suffix)
        )
    word = "stopped with nothing left to gain" if converged else "ran out of epochs before it converged"
    conditions.append(Condition("converged", converged, "it was fitted to convergence", f"fitting {word}"))
    asks = "of sibling steps (after bare states) it prefers the best more often than chance"
    if sibling_excess is None:
        conditions.append(Condition("sibling_top1", NOT_MEASURED, asks, NOTHING_MEASURED))
    else:
        conditions.append(_above("sibling_top1", sibling_excess, 0.0, asks))
    return conditions + _probes(probes or {}, max_probe_rise, judge_probes)


def _probes(changes: Mapping[str, tuple[Interval, int]], max_rise: float, judged: bool) -> list[Condition]:
    """Returns the condition of all kinds, and one that was not measured for each kind that was not."""
    asks = "cosmetic changes of a step (in bare rollouts) do not raise its value, harmful ones lower it"
    told = {kind: holds(kind, change, max_rise=max_rise) for kind, (change, _) in changes.items()}
    wrong = [
        f"{kind} changes the value by {interval_words(changes[kind][0], 3)}, which "
        + (f"may rise by {max_rise:g} at most" if KINDS[kind].expects == "no rise" else "must be below 0")
        for kind, ok in told.items()
        if ok is False
    ]
    if not changes:
        return [Condition("probes", NOT_MEASURED, asks, NOTHING_MEASURED)]
    if all(ok is None for ok in told.values()):
        wrong = [f"{FEW}; more critic_report.probe_rollouts"]
    unknown = [kind for kind, ok in told.items() if ok is None]
    reason = "; ".join(wrong) or f"{len(told) - len(unknown)} kinds of change move the value as they must"
    whole = Condition("probes", not wrong if judged else NOT_JUDGED, asks, reason)
    return [whole] + [Condition(f"probes ({kind})", NOT_MEASURED, asks, FEW) for kind in unknown]


def _above(name: str, interval: Interval, threshold: float, asks: str) -> Condition:
    # NaN compares false, so an undefined measure fails.
    passed = interval.low > threshold
    if math.isnan(interval.value):
        reason = "undefined: the audited states do not vary enough, or there are too few"
    elif not math.isfinite(interval.low):
        reason = (
            f"{interval.value:.3f} without bounds: too few clusters, or resamples that leave it undefined"
        )
    else:
        word = "above" if passed else "not above"
        reason = f"{interval_words(interval, 3)}: the lower bound is {word} {threshold:g}"
    return Condition(name, passed, asks, reason, interval, threshold)


def _below(name: str, excess: Interval, threshold: float, suffix: str) -> Condition:
    passed = excess.high < threshold
    if not math.isfinite(excess.high):
        reason = "undefined: too few audited states or clusters"
    else:
        word = "below" if passed else "not below"
        reason = (
            f"calibration error minus its floor is {interval_words(excess, 3)}: the upper bound is {word} "
            f"{threshold:g}"
        )
    return Condition(
        name, passed, "its percentages can be taken at their word" + suffix, reason, excess, threshold
    )


def passed(conditions: Sequence[Condition]) -> bool:
    """Returns whether every condition that was measured and judged passed."""
    return all(condition.passed is not False for condition in conditions)


def gate_dict(
    conditions: Sequence[Condition],
    measures: Mapping[str, Interval],
    *,
    contexts: Sequence[str],
    policy_digest: str,
    critic_digest: str,
) -> dict[str, Any]:
    """Returns the content of gate.json.

    Keys: `passed`, `verdict` (PASS or FAIL), `contexts` (which were judged), `reasons` (failed conditions in
    words), `not_measured`, `not_judged`, `conditions`, `adv_rmse` (of bare states, null if undefined),
    `kl_range` (nats per token from the label policy at which it was judged: [0, 0], that policy's own states
    and continuations; the actor's drift checks go on from there), `policy_digest`, `critic_digest`.
    """
    good = passed(conditions)
    adv_rmse = measures["adv_rmse"].value
    return {
        "passed": good,
        "verdict": "PASS" if good else "FAIL",
        "contexts": list(contexts),
        "reasons": [f"{c.name}: {c.reason}" for c in conditions if c.passed is False],
        "not_measured": [c.name for c in conditions if c.passed == NOT_MEASURED],
        "not_judged": [c.name for c in conditions if c.passed == NOT_JUDGED],
        "conditions": [
            {
                "name": c.name,
                "passed": c.passed,
                "asks": c.asks,
                "reason": c.reason,
                "threshold": c.threshold,
                **({} if c.interval is None else interval_dict(c.interval)),
            }
            for c in conditions
        ],
        "adv_rmse": adv_rmse if math.isfinite(adv_rmse) else None,
        "kl_range": [0.0, 0.0],
        "policy_digest": policy_digest,
        "critic_digest": critic_digest,
    }


def opening(
    conditions: Sequence[Condition],
    measures: Mapping[str, Interval],
    *,
    policy_digest: str,
    weakest: str | None,
    sibling_pairs: Interval | None = None,
) -> str:
    """Returns the page's first paragraph: the verdict and what it means, in plain words."""
    good = passed(conditions)
    parts = [
        f"{'PASS' if good else 'FAIL'}. This critic estimates the chance that policy {policy_digest[:12]} "
        "solves an unseen task from a given step.",
        f"It explains {percent(measures['ev'])} of the differences between states, "
        f"{percent(measures['ev_within'])} within one rollout (0 = useless for steps).",
    ]
    if math.isfinite(measures["sign_agreement"].value):  # two continuations a state make no step clear
        parts.append(
            "Where a step clearly changed that chance, it sees the direction in "
            f"{percent(measures['sign_agreement'])} (a coin: 50 %)."
        )
    if sibling_pairs is not None and math.isfinite(sibling_pairs.value):
        parts.append(
            f"Of two clearly different next steps it prefers the better in {percent(sibling_pairs)} "
            "(chance 50 %)."
        )
    ece, floor = measures["ece"].value, measures["ece_floor"].value
    if math.isfinite(ece):
        parts.append(
            f"Its percentages are off by {100 * ece:.0f} points "
            f"(a perfect critic would show {100 * floor:.0f} here)."
        )
    skill = measures["skill_over_task_rate"]
    if math.isfinite(skill.value):
        verb = "beats" if skill.value > 0 else "falls short of"
        parts.append(f"It {verb} the bare task success rate by {abs(100 * skill.value):.0f} %.")
    if weakest:
        parts.append(f"Weakest: {weakest}.")
    failed = [c for c in conditions if c.passed is False]
    if failed:
        parts.append("It fails because: " + "; ".join(f"{c.name}, {c.reason}" for c in failed) + ".")
    for word in (NOT_MEASURED, NOT_JUDGED):
        if names := [c.name for c in conditions if c.passed == word]:
            parts.append(f"{word.capitalize()}: {', '.join(names)}.")
    parts.append("It does not judge step correctness.")
    return " ".join(parts)


def percent(interval: Interval) -> str:
    """Returns a share with its bounds as text."""
    if math.isnan(interval.value):
        return "an undefined share"
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return f"{100 * interval.value:.0f} % [no bounds]"
    value, low, high = (
        "below -100" if share < -1 else f"{100 * share:.0f}"  # how far below says nothing more
        for share in (interval.value, interval.low, interval.high)
    )
    return f"{value} % [{low}, {high}]"
