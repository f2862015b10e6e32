"""Whether a critic is good enough to train an actor with, condition by condition, in plain words.

The gate is judged on clusters that no training task belongs to, with the level of the values refitted
(`critics.audit.data.level_refitted`): what an actor's outcomes would teach it anyway is not asked of the
critic twice. Thresholds are constants: a gate that a configuration can loosen is no gate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from critics.audit.data import AuditData, level_refitted
from critics.audit.measures import measure
from critics.audit.probes import KINDS, MAX_RISE, holds
from critics.privileged import Kind
from pipeline.statistics import MIN_CLUSTERS, ClusterBootstrap, Interval, interval_dict, interval_words

MIN_ADVANTAGE_CORRELATION = 0.2
"""The lower bound of rho_A must exceed this (start value)."""
MAX_CALIBRATION_EXCESS = 0.03
"""The upper bound of the calibration error must stay under its floor plus this (start value)."""
MAX_BIAS = 0.1
"""The level, as it was frozen, must not be clearly farther off than this (start value)."""
ABOVE = (
    ("ev", 0.0, "it explains differences between states"),
    ("ev_within", 0.0, "it explains differences within one rollout"),
    ("rho_a", MIN_ADVANTAGE_CORRELATION, "its step advantages go with the measured ones"),
    ("skill_over_task_rate", 0.0, "it beats the task's own success rate"),
    ("skill_over_constant", 0.0, "it beats a constant"),
    ("skill_over_position", 0.0, "it beats the position alone"),
)
"""Measures that the lower bound of must exceed a threshold, and what that asks."""
_OVER_COUNTING = ("skill_over_errors_so_far", 0.0, "it beats counting the verdicts that it is told")
ABOVE_IF_TOLD: dict[Kind, tuple[tuple[str, float, str], ...]] = {
    "none": (),
    "words": (_OVER_COUNTING,),
    "features": (
        _OVER_COUNTING,
        ("ev_within_over_errors_so_far", 0.0, "it does so within one rollout too"),
    ),
}
"""The same of a critic with privileged inputs. What `features` mean is calibrated on true outcomes whatever
the weights were fitted to, so there what these say of tasks proves nothing about steps."""
NOT_MEASURED: Literal["not measured"] = "not measured"
NOTHING_MEASURED = "not measured in this report"
OF_STEPS = ("ev_within", "rho_a", "ev_within_over_errors_so_far")
NO_STEPS = (
    "undefined: no rollout has two audited states in a row; where rollouts have one step, there is no step "
    "credit to judge. Next: an actor without a critic (actor.credit.mode=decoupled_clip), or an environment "
    "whose answers have several steps"
)
"""Conditions on steps, and what is said of them where there are none."""
FEW = f"no such change could be made, or in fewer than {MIN_CLUSTERS} clusters"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of the gate."""

    name: str  # of the measure
    passed: bool | Literal["not measured"]
    asks: str  # what is asked, in words
    reason: str  # what was found, in words
    interval: Interval | None = None  # the measure; None for a yes or no, or when it was not measured
    threshold: float | None = None  # what a bound is compared with


def measures_of(audit: AuditData, *, num_resamples: int, seed: int) -> dict[str, Interval]:
    """Returns what `judge` reads: `measure` with the level refitted, and `level_bias`, the bias as frozen."""
    bias = ClusterBootstrap(audit.cluster, num_resamples, seed, MIN_CLUSTERS).mean(audit.p - audit.v_hat)
    refitted = level_refitted(audit, seed)
    return measure(refitted, num_resamples=num_resamples, seed=seed) | {"level_bias": bias}


def judge(
    measures_by_context: Mapping[str, Mapping[str, Interval]],
    *,
    converged: bool,
    privileged: Kind = "none",
    sibling_excess: Interval | None = None,
    probes: Mapping[str, tuple[Interval, int]] | None = None,
) -> list[Condition]:
    """Returns the gate's conditions: bounds of each context's `measures_of`, convergence, siblings, probes.

    "bare" is always there, "guided" if the actor trains in it. `privileged` is what the critic is told;
    `sibling_excess` and `probes` are None where none were played.
    """
    if "bare" not in measures_by_context:
        raise ValueError(f"the gate judges bare states; got measures of {sorted(measures_by_context)}")
    conditions = []
    for context, measures in measures_by_context.items():
        suffix = "" if context == "bare" else f" ({context})"
        for name, threshold, asks in (*ABOVE, *ABOVE_IF_TOLD[privileged]):
            conditions.append(_above(name + suffix, measures[name], threshold, asks + suffix))
            if name in OF_STEPS and _has_no_steps(measures):
                conditions[-1] = replace(conditions[-1], reason=NO_STEPS)
        conditions += [_calibrated(measures["ece_excess"], suffix), _level(measures["level_bias"], suffix)]
    conditions.append(_converged(converged))
    asks = "of sibling steps (after bare states) it prefers the best more often than chance"
    if sibling_excess is None:
        conditions.append(Condition("sibling_excess", NOT_MEASURED, asks, NOTHING_MEASURED))
    else:
        conditions.append(_above("sibling_excess", sibling_excess, 0.0, asks))
    return conditions + _probes(probes or {})


def _has_no_steps(measures: Mapping[str, Interval]) -> bool:
    """Returns whether there are states, but no two in a row: else the error of a step would be known."""
    return math.isnan(measures["adv_rmse"].value) and not math.isnan(measures["rmse"].value)


def judge_outcomes(measures: Mapping[str, Interval], *, converged: bool) -> list[Condition]:
    """Returns the conditions on a critic of a recorded policy, which nobody can play: its `outcome_skills`.

    Less is asked than of an audit, so it lets a critic weigh recorded steps and nothing else.
    """
    asks = {name: words for name, _, words in ABOVE}
    conditions = [_above(name, interval, 0.0, asks[name]) for name, interval in measures.items()]
    return [*conditions, _converged(converged)]


def _converged(converged: bool) -> Condition:
    word = "stopped with nothing left to gain" if converged else "ran out of epochs before it converged"
    return Condition("converged", converged, "it was fitted to convergence", f"fitting {word}")


def _probes(changes: Mapping[str, tuple[Interval, int]]) -> list[Condition]:
    """Returns the condition of all kinds, and one that was not measured for each kind that was not."""
    asks = "cosmetic changes of a step (in bare rollouts) do not raise its value, harmful ones lower it"
    if not changes:
        return [Condition("probes", NOT_MEASURED, asks, NOTHING_MEASURED)]
    told = {kind: holds(kind, change) for kind, (change, _) in changes.items()}
    wrong = [
        f"{kind} changes the value by {interval_words(changes[kind][0], 3)}, which "
        + (f"may rise by {MAX_RISE:g} at most" if KINDS[kind].expects == "no rise" else "must be below 0")
        for kind, ok in told.items()
        if ok is False
    ]
    unknown = [kind for kind, ok in told.items() if ok is None]
    if len(unknown) == len(told):
        return [Condition("probes", False, asks, f"{FEW}; more critic_report.probe_rollouts")]
    reason = "; ".join(wrong) or f"{len(told) - len(unknown)} kinds of change move the value as they must"
    whole = Condition("probes", not wrong, asks, reason)
    return [whole] + [Condition(f"probes ({kind})", NOT_MEASURED, asks, FEW) for kind in unknown]


def _above(name: str, interval: Interval, threshold: float, asks: str) -> Condition:
    # NaN compares false, so an undefined measure fails.
    passed = interval.low > threshold
    word = "above" if passed else "not above"
    reason = f"{interval_words(interval, 3)}: the lower bound is {word} {threshold:g}"
    if math.isnan(interval.value):
        reason = "undefined: the audited states do not vary enough, or there are too few"
    elif not math.isfinite(interval.low):
        reason = (
            f"{interval.value:.3f} without bounds: fewer than {MIN_CLUSTERS} clusters were audited, or "
            "resamples leave it undefined"
        )
    return Condition(name, passed, asks, reason, interval, threshold)


def _calibrated(excess: Interval, suffix: str) -> Condition:
    passed = excess.high < MAX_CALIBRATION_EXCESS
    reason = f"no bounds: no audited states, or fewer than {MIN_CLUSTERS} clusters"
    if math.isfinite(excess.high):
        reason = (
            f"calibration error minus its floor is {interval_words(excess, 3)}: the upper bound is "
            f"{'below' if passed else 'not below'} {MAX_CALIBRATION_EXCESS:g}"
        )
    asks = f"its percentages can be taken at their word, once their level is right{suffix}"
    return Condition("ece_excess" + suffix, passed, asks, reason, excess, MAX_CALIBRATION_EXCESS)


def _level(bias: Interval, suffix: str) -> Condition:
    passed = abs(bias.value) <= MAX_BIAS or not bias.excludes(0)
    reason = f"as frozen, predicted minus measured is {interval_words(bias, 3)}"
    asks = f"its level was not clearly off by more than {100 * MAX_BIAS:.0f} points{suffix}"
    return Condition("level" + suffix, passed and math.isfinite(bias.value), asks, reason, bias, MAX_BIAS)


def passed(conditions: Sequence[Condition]) -> bool:
    """Returns whether every condition that was measured passed."""
    return all(condition.passed is not False for condition in conditions)


def gate_dict(
    conditions: Sequence[Condition],
    adv_rmse: Interval,
    *,
    contexts: Sequence[str],
    policy_digest: str,
    critic_digest: str,
) -> dict[str, Any]:
    """Returns the content of gate.json.

    `contexts` are those that were judged, `reasons` failed conditions in words. Half of the value of
    `adv_rmse`, of bare states, is the actor's dead zone. `kl_range` is in nats per token from the label
    policy: [0, 0], its own states and continuations; the actor's drift checks go on from there.
    """
    good = passed(conditions)
    return {
        "passed": good,
        "verdict": "PASS" if good else "FAIL",
        "contexts": list(contexts),
        "reasons": [f"{c.name}: {c.reason}" for c in conditions if c.passed is False],
        "not_measured": [c.name for c in conditions if c.passed == NOT_MEASURED],
        "conditions": [
            {"name": c.name, "passed": c.passed, "asks": c.asks, "reason": c.reason, "threshold": c.threshold}
            | ({} if c.interval is None else interval_dict(c.interval))
            for c in conditions
        ],
        "adv_rmse": interval_dict(adv_rmse),
        "kl_range": [0.0, 0.0],
        "policy_digest": policy_digest,
        "critic_digest": critic_digest,
    }
