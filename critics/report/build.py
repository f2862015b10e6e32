"""What the critic report says: audited states to report.json. `critics.report.page` draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from critics.audit.baselines import BASELINES, split_counts
from critics.audit.calibration_error import equal_mass_bins
from critics.audit.data import AuditData, AuditRollout
from critics.audit.first_error import first_error
from critics.audit.measures import measure, sizes
from critics.audit.probes import MAX_RISE, Probed, length_correlations, probe_changes, probe_table
from critics.audit.siblings import Siblings, reference_size, sibling_measures
from critics.audit.slices import NUM_POSITIONS, position_bins, slices
from critics.frozen.calibrator import isotonic
from critics.report import gate
from pipeline.ids import digest
from pipeline.statistics import Interval, clustered_mean, interval_dict, wilson

MAX_POINTS = 1500
"""Scatter plots show at most so many states; every measure uses all."""
FITTED_ON = ("labelled_rollouts", "continuations")
"""What of the fit's report says how much the critic was fitted on: rollouts by part, and more rows if any."""
MIN_SLICE_STATES = 30
"""Smaller slices are not called the weakest, and get no curve of their own."""
REFERENCE_METRICS = ("brier", "ev", "ev_within", "rho_a", "rmse", "auroc", "ece_excess")
"""What the references are compared by."""
SOLVER = "the solver's V*"
"""Name of the reference that is the chance of the best play there is."""


def build_report(
    audit: AuditData,
    *,
    converged: bool,
    policy_digest: str,
    critic_digest: str,
    evaluations: Sequence[Mapping[str, Any]] = (),
    labels_report: Mapping[str, Any] | None = None,
    fit_report: Mapping[str, Any] | None = None,
    judged_contexts: Sequence[str] = ("bare",),
    num_resamples: int = 1000,
    seed: int = 0,
    num_sample_rollouts: int = 6,
    min_advantage_correlation: float = 0.2,
    max_calibration_excess: float = 0.03,
    siblings: Siblings | None = None,
    probed: Probed | None = None,
    max_probe_rise: float = MAX_RISE,
    judge_probes: bool = True,
    fitted: AuditData | None = None,
) -> dict[str, Any]:
    """Returns report.json: verdict, measures, slices, baselines and the numbers behind every drawing.

    Args:
        audit: audited states, of any contexts.
        converged: from the fit.
        policy_digest: whose chance of success is estimated.
        critic_digest: which critic.
        evaluations: the fit's, for its curves.
        labels_report: of `critics.labels.soft_targets.build_labels`.
        fit_report: of the fit; what is shown of it is `FITTED_ON`.
        judged_contexts: contexts that the gate judges; "guided" too if the actor trains there.
        num_resamples: of clusters, behind each interval.
        seed: of resamples and of the rollouts shown.
        num_sample_rollouts: rollouts drawn with their values.
        min_advantage_correlation: gate.
        max_calibration_excess: gate.
        siblings: states after sibling steps; None if no sets were played.
        probed: changed states; None if none were made.
        max_probe_rise: gate.
        judge_probes: gate; otherwise probes are shown and left to the reader.
        fitted: states of tasks that the critic was fitted on; None if none were continued.

    Returns:
        JSON-serialisable; `["gate"]` is the content of gate.json, `["passed"]` the verdict.

    Raises:
        ValueError: no audited bare state.
    """
    parts = {
        context: audit.where(audit.context == context) for context in sorted(set(audit.context.tolist()))
    }
    if "bare" not in parts:
        raise ValueError(f"the audit has states of contexts {sorted(parts)}; the gate judges bare ones")
    # A context that was never audited is judged all the same, and fails as undefined.
    for context in judged_contexts:
        parts.setdefault(context, audit.where(audit.context == context))
    found = {
        context: measure(part, num_resamples=num_resamples, seed=seed) for context, part in parts.items()
    }
    bare, measures = parts["bare"], found["bare"]
    judged = {context: found[context] for context in ("bare", *judged_contexts)}
    draws: dict[str, int] = {"num_resamples": num_resamples, "seed": seed}
    told, num_telling = ({}, 0) if siblings is None else sibling_measures(siblings, **draws)
    changes = {} if probed is None else probe_changes(probed, **draws)
    conditions = gate.judge(
        judged,
        converged=converged,
        min_advantage_correlation=min_advantage_correlation,
        max_calibration_excess=max_calibration_excess,
        sibling_excess=told.get("sibling_excess"),
        probes=changes,
        max_probe_rise=max_probe_rise,
        judge_probes=judge_probes,
    )
    few = min(num_resamples, 500)
    rows = slices(audit, num_resamples=few, seed=seed)
    # The opening speaks of bare states, so its weakest slice is one of theirs.
    rows_of_bare = slices(bare, num_resamples=few, seed=seed) if len(parts) > 1 else rows
    verdict = gate.gate_dict(
        conditions,
        measures,
        contexts=tuple(judged),
        policy_digest=policy_digest,
        critic_digest=critic_digest,
    )
    return {
        "passed": verdict["passed"],
        "opening": gate.opening(
            conditions,
            measures,
            policy_digest=policy_digest,
            weakest=_weakest(rows_of_bare),
            sibling_pairs=told.get("sibling_pairs"),
        ),
        "gate": verdict,
        "policy_digest": policy_digest,
        "critic_digest": critic_digest,
        "sizes": {context: sizes(part) for context, part in parts.items()},
        "measures": {c: {name: interval_dict(x) for name, x in of.items()} for c, of in found.items()},
        "slices": [_plain(row) for row in rows],
        "baselines": _baselines(bare, num_resamples, seed),
        "fitted": _fitted(fitted, num_resamples, seed),
        "bias_by_level_and_position": _bias_grid(bare, num_resamples, seed),
        "siblings": {
            "num_sets": 0 if siblings is None else len(siblings.sets()),
            "num_telling": num_telling,
            "reference_size": 0 if siblings is None else reference_size(siblings.K),
        }
        | {name: interval_dict(x) for name, x in told.items()},
        "probes": probe_table(changes, max_rise=max_probe_rise),
        "length_correlations": {
            name: {kind: interval_dict(x) for kind, x in of.items()}
            for name, of in length_correlations(bare, **draws).items()
        },
        "first_error": _plain(first_error(audit.rollouts, seed=seed)),
        "reliability": _reliability(bare, num_resamples, seed),
        "calibration_curves": _calibration_curves(bare),
        "scatter": _scatter(bare, seed),
        "ev_by_position": _ev_by(bare, "position", num_resamples, seed),
        "ev_by_level": _ev_by(bare, "level", num_resamples, seed),
        "evaluations": [dict(entry) for entry in evaluations],
        "labels": dict(labels_report or {}),
        "fit": {name: fit_report[name] for name in FITTED_ON if fit_report and name in fit_report},
        "sample_rollouts": _samples(audit, num_sample_rollouts, seed),
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: interval_dict(x) if isinstance(x, Interval) else x for name, x in row.items()}


def _weakest(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the slice of a useful size in which values are farthest from the truth, in words.

    Not the one that explains least: where states hardly differ, there is little to explain and all but any
    error is more than that. How long a rollout became is hindsight: what a critic cannot know of it is no
    weakness.
    """
    useful = [
        row
        for row in rows
        if row["kind"] not in ("context", "length")
        and row["num_states"] >= MIN_SLICE_STATES
        and math.isfinite(row["rmse"].value)
    ]
    if len(useful) < 2:
        return None
    row = max(useful, key=lambda row: row["rmse"].value)
    name = (
        f"the {row['name']} part of the budget"
        if row["kind"] == "position"
        else f"{row['kind']} {row['name']}"
    )
    within, truth = row["ev_within"], 100 * row["rmse"].value
    words = f"{name}, where values are {truth:.0f} points off the truth (root mean square)"
    # Of a part of the budget a rollout has few states, which hardly differ.
    if row["kind"] != "position" and math.isfinite(within.value):
        words += f" and explain {gate.percent(within)} within one rollout"
    return words


def _baselines(audit: AuditData, num_resamples: int, seed: int) -> list[dict[str, Any]]:
    predictions = {"this critic": audit} | {
        name: replace(audit, p=make(audit)) for name, make in BASELINES.items()
    }
    # What sampling at the very state would tell, judged by the state's other ones: no bound, it is noisy.
    if size := reference_size(audit.K):
        enough = audit.where(np.greater_equal(audit.K, max(2 * size, size + 2)))
        predictions["1 continuation" if size == 1 else f"{size} continuations"] = split_counts(
            enough, size, seed
        )
    # Whoever could play best: where the policy plays worse, V* lies above its chances.
    if len(audit) and np.isfinite(audit.v_star).all():
        predictions[SOLVER] = replace(audit, p=audit.v_star)
    return [{"name": name} | _reference(judged, num_resamples, seed) for name, judged in predictions.items()]


def _fitted(audit: AuditData | None, num_resamples: int, seed: int) -> dict[str, Any] | None:
    """Returns how the critic fares on tasks that it was fitted on; None if they were not continued."""
    if audit is None or not len(audit):
        return None
    return {"num_states": len(audit), "num_tasks": len(set(audit.task_id.tolist()))} | _reference(
        audit, num_resamples, seed
    )


def _reference(audit: AuditData, num_resamples: int, seed: int) -> dict[str, Any]:
    """Returns `REFERENCE_METRICS` of an estimate."""
    found = measure(audit, num_resamples=num_resamples, seed=seed)
    return _plain({name: found[name] for name in REFERENCE_METRICS})


def _mean(column: np.ndarray, clusters: np.ndarray, num_resamples: int, seed: int) -> Interval:
    return clustered_mean(column, clusters, num_resamples=num_resamples, seed=seed)


def _bias_grid(audit: AuditData, num_resamples: int, seed: int) -> list[dict[str, Any]]:
    """Returns mean p - Vhat of every level and fifth of the budget that holds a state."""
    places, error = position_bins(audit), audit.p - audit.v_hat
    return [
        {
            "level": int(level),
            "position": int(place),
            "num_states": int(at.sum()),
            "bias": interval_dict(_mean(error[at], audit.cluster[at], min(num_resamples, 500), seed)),
        }
        for level in np.unique(audit.level)
        for place in range(NUM_POSITIONS)
        if (at := (audit.level == level) & (places == place)).any()
    ]


def _calibration_curves(audit: AuditData) -> dict[str, list[dict[str, Any]]]:
    """Returns isotonic curves of all states, and of each level and fifth of the budget of a useful size."""
    places = position_bins(audit)
    width = 100 // NUM_POSITIONS
    parts = {
        "all": {"all states": np.ones(len(audit), dtype=bool)},
        "level": {f"level {level}": audit.level == level for level in np.unique(audit.level)},
        "position": {
            f"{width * place}-{width * (place + 1)} %": places == place for place in range(NUM_POSITIONS)
        },
    }
    return {
        kind: [
            {
                "name": name,
                "num_states": int(at.sum()),
                "plateaus": [
                    list(plateau) for plateau in isotonic(audit.p[at], audit.v_hat[at], audit.K[at])
                ],
            }
            for name, at in members.items()
            if at.sum() >= (1 if kind == "all" else MIN_SLICE_STATES)
        ]
        for kind, members in parts.items()
    }


def _reliability(audit: AuditData, num_resamples: int, seed: int) -> list[dict[str, Any]]:
    bins = equal_mass_bins(audit.p)
    rows = []
    for b in sorted(set(bins.tolist())):
        at = bins == b
        observed = _mean(audit.v_hat[at], audit.cluster[at], num_resamples, seed)
        rows.append(
            {
                "predicted": float(audit.p[at].mean()),
                "num_states": int(at.sum()),
                "observed": interval_dict(observed),
            }
        )
    return rows


def _scatter(audit: AuditData, seed: int) -> dict[str, list[float]]:
    rng = np.random.default_rng([seed, 7])
    i, j = audit.pairs()
    states = np.sort(rng.permutation(len(audit))[:MAX_POINTS])
    pairs = np.sort(rng.permutation(len(i))[:MAX_POINTS])
    i, j = i[pairs], j[pairs]
    return {
        "p": audit.p[states].round(5).tolist(),
        "v_hat": audit.v_hat[states].round(5).tolist(),
        "advantage": (audit.p[j] - audit.p[i]).round(5).tolist(),
        "advantage_hat": (audit.v_hat[j] - audit.v_hat[i]).round(5).tolist(),
    }


def _ev_by(audit: AuditData, kind: str, num_resamples: int, seed: int) -> list[dict[str, Any]]:
    return [
        _plain(row) for row in slices(audit, kinds=(kind,), num_resamples=min(num_resamples, 500), seed=seed)
    ]


def _samples(audit: AuditData, number: int, seed: int) -> list[dict[str, Any]]:
    """Returns rollouts to draw: solved and failed in turn, chosen by hash; audited ones, of a task each."""
    measured = set(zip(audit.rollout_id.tolist(), audit.context.tolist(), strict=True))
    by_hash = sorted(
        (r for r in audit.rollouts if r.values and (r.rollout_id, r.context) in measured),
        key=lambda r: digest("shown", seed, r.task_id, r.context, r.rollout_id),
    )
    drawn = list({r.task_id: r for r in reversed(by_hash)}.values())[::-1]
    solved, failed = (
        [r for r in drawn if (r.reward or 0) >= 0.5],
        [r for r in drawn if (r.reward or 0) < 0.5],
    )
    chosen: list[AuditRollout] = []
    while len(chosen) < number and (solved or failed):
        for queue in (solved, failed):
            if queue and len(chosen) < number:
                chosen.append(queue.pop(0))
    samples = []
    for rollout in chosen:
        at = np.flatnonzero((audit.rollout_id == rollout.rollout_id) & (audit.context == rollout.context))
        audited = []
        for row in at[np.argsort(audit.step_index[at])]:
            bounds = wilson(int(audit.k[row]), int(audit.K[row]))
            audited.append([int(audit.step_index[row]), bounds.value, bounds.low, bounds.high])
        samples.append(asdict(rollout) | {"audited": audited})
    return samples
