"""What the critic report says: audited states to report.json. `critics.report.page` draws it.

Judged are states of clusters that no training task belongs to, their level refitted; slices are of all
audited bare states, with values as they were frozen.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from critics.audit import own_start
from critics.audit.baselines import BASELINES, split_counts
from critics.audit.calibration_error import equal_mass_bins, rising_curve
from critics.audit.data import AuditData, AuditRollout, level_refitted, unseen
from critics.audit.first_error import first_error
from critics.audit.measures import measure, slices
from critics.audit.probes import Probed, probe_changes, probe_table
from critics.audit.reference_critics import VISIBLE, VISIBLE_ALONE, reference_critics
from critics.audit.siblings import Siblings, reference_size, sibling_measures
from critics.privileged import Kind
from critics.report import gate
from critics.report.opening import findings, opening_of
from pipeline.ids import digest
from pipeline.statistics import MIN_CLUSTERS, ClusterBootstrap, Interval, interval_dict, wilson

NUM_SAMPLES = 6
"""Rollouts drawn with their values."""
SLICE_RESAMPLES = 500
"""At most so many for parts of the audit."""
REFERENCE_METRICS = ("brier", "ev", "ev_within", "rho_a", "rmse", "auroc", "ece_excess")
"""What the references are compared by."""
SOLVER = "the solver's V*"
"""Name of the reference that is the chance of the best play there is."""


def build_report(
    audit: AuditData,
    *,
    trained_clusters: Collection[str],
    converged: bool,
    policy_digest: str,
    critic_digest: str,
    privileged: Kind = "none",
    evaluations: Sequence[Mapping[str, Any]] = (),
    judged_contexts: Sequence[str] = ("bare",),
    num_resamples: int = 1000,
    seed: int = 0,
    siblings: Siblings | None = None,
    probed: Probed | None = None,
    fitted: AuditData | None = None,
) -> dict[str, Any]:
    """Returns report.json: verdict, measures, slices, references and the numbers behind every drawing.

    Args:
        audit: audited states, of any contexts; one at least a bare one of an unseen cluster.
        trained_clusters: of the training tasks; states of the others are judged.
        converged: from the fit.
        policy_digest: whose chance of success is estimated.
        critic_digest: which critic.
        privileged: what it is told of verdicts on earlier steps.
        evaluations: the fit's, for its curve.
        judged_contexts: "guided" too if the actor trains there.
        num_resamples: of clusters, behind each interval.
        seed: of resamples, folds and the rollouts shown.
        siblings: states after sibling steps; None if no sets were played.
        probed: changed states; None if none were made.
        fitted: states of tasks that the critic was fitted on; None if none were continued.
    """
    contexts = sorted({*audit.context.tolist(), *judged_contexts, "bare"})
    frozen = {c: unseen(audit.where(audit.context == c), trained_clusters) for c in contexts}
    if not len(frozen["bare"]):
        raise ValueError(
            f"none of {len(audit)} audited states is a bare one of a cluster without training tasks"
        )
    # A context that was never audited is judged all the same, and fails as undefined.
    judged = {context: level_refitted(part, seed) for context, part in frozen.items()}
    draws: dict[str, int] = {"num_resamples": num_resamples, "seed": seed}
    measures = {context: gate.measures_of(part, **draws) for context, part in frozen.items()}
    bare = judged["bare"]
    told, num_telling = ({}, 0) if siblings is None else sibling_measures(siblings, **draws)
    boot = ClusterBootstrap(bare.cluster, num_resamples, seed, MIN_CLUSTERS)
    measures["bare"]["beyond_start"] = own_start.beyond_start(bare, boot)
    located = first_error(audit.rollouts, seed=seed)
    measures["bare"] |= told | {name: x for name, x in located.items() if isinstance(x, Interval)}
    changes = {} if probed is None else probe_changes(probed, **draws)
    conditions = gate.judge(
        {context: measures[context] for context in ("bare", *judged_contexts)},
        converged=converged,
        privileged=privileged,
        sibling_excess=told.get("sibling_excess"),
        probes=changes,
    )
    references = _references(bare, frozen["bare"], fitted, privileged, **draws)
    few = min(num_resamples, SLICE_RESAMPLES)
    rows = slices(audit.where(audit.context == "bare"), num_resamples=few, seed=seed)
    verdict = gate.gate_dict(
        conditions,
        measures["bare"]["adv_rmse"],
        contexts=tuple(dict.fromkeys(("bare", *judged_contexts))),
        policy_digest=policy_digest,
        critic_digest=critic_digest,
    )
    within = {row["name"]: row["ev_within"]["value"] for row in references}
    found = findings(measures["bare"], within.get(VISIBLE), within.get(VISIBLE_ALONE))
    return {
        "passed": verdict["passed"],
        "opening": [opening_of(conditions, policy_digest, rows), *(" ".join(pair) for pair in found)],
        "findings": found,
        "gate": verdict,
        "policy_digest": policy_digest,
        "critic_digest": critic_digest,
        "privileged": privileged,
        "judged": {
            context: _sizes(part) | {"splits": sorted(set(part.split.tolist()))}
            for context, part in judged.items()
        },
        "measures": {context: _plain(of) for context, of in measures.items()},
        "references": references,
        "slices": [_plain(row) for row in rows],
        "siblings": {
            "num_sets": 0 if siblings is None else len(siblings.sets()),
            "num_telling": num_telling,
            "reference_size": 0 if siblings is None else siblings.reference_size,
        },
        "probes": probe_table(changes),
        "reliability": _reliability(bare, frozen["bare"].p, **draws),
        "rising": rising_curve(bare),
        "evaluations": [dict(entry) for entry in evaluations],
        "sample_rollouts": _samples(audit, seed),
    }


def _sizes(audit: AuditData) -> dict[str, int]:
    """Returns counts behind the measures."""
    names = {"rollouts": audit.rollout_id, "tasks": audit.task_id, "clusters": audit.cluster}
    counts = {f"num_{name}": len(set(column.tolist())) for name, column in names.items()}
    return {"num_states": len(audit), "num_continuations": int(audit.K.sum())} | counts


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: interval_dict(x) if isinstance(x, Interval) else x for name, x in row.items()}


def _references(
    audit: AuditData,
    frozen: AuditData,
    fitted: AuditData | None,
    privileged: Kind,
    *,
    num_resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Returns `REFERENCE_METRICS` of the critic and of what it is read beside, on the judged bare states."""
    named = {"this critic": audit, "this critic, level as frozen": frozen}
    named |= {name: replace(audit, p=make(audit)) for name, make in BASELINES.items()}
    named[own_start.NAME] = replace(audit, p=own_start.start_and_step(audit))
    named |= reference_critics(audit, seed, privileged)
    # What sampling at the very state would tell, judged by the state's other ones: no bound, it is noisy.
    if (size := reference_size(audit.K)) and audit.squares is None:
        enough = audit.where(np.greater_equal(audit.K, max(2 * size, size + 2)))
        named["1 continuation" if size == 1 else f"{size} continuations"] = split_counts(enough, size, seed)
    # Whoever could play best: where the policy plays worse, V* lies above its chances.
    if np.isfinite(audit.v_star).all():
        named[SOLVER] = replace(audit, p=audit.v_star)
    if fitted is not None and len(fitted):
        named[f"this critic on {len(set(fitted.task_id.tolist()))} tasks it was fitted on"] = level_refitted(
            fitted, seed
        )
    rows = []
    for name, part in named.items():
        found = measure(part, num_resamples=num_resamples, seed=seed)
        rows.append(
            {"name": name, "num_states": len(part)} | _plain({x: found[x] for x in REFERENCE_METRICS})
        )
    return rows


def _reliability(
    audit: AuditData, frozen: np.ndarray, *, num_resamples: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Returns what was measured where the critic says so much: of states, and of the change at steps.

    Bins of states have the bounds of their values as frozen, by which the viewer finds them again.
    """
    boot = ClusterBootstrap(audit.cluster, num_resamples, seed, MIN_CLUSTERS)
    before, after = audit.pairs()
    p, v = audit.p, audit.v_hat
    return {
        "states": _binned(p, v, np.arange(len(audit)), boot, frozen),
        "steps": _binned(p[after] - p[before], v[after] - v[before], before, boot) if len(before) else [],
    }


def _binned(
    predicted: np.ndarray,
    measured: np.ndarray,
    rows: np.ndarray,
    boot: ClusterBootstrap,
    bounded: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Returns the means of equal-mass bins of [N] predictions, and the bounds of [N] other numbers in them.

    `rows` are the places of the predictions in the bootstrap.
    """
    bins = equal_mass_bins(predicted)
    return [
        {
            "predicted": float(predicted[at].mean()),
            "num_states": len(at),
            "observed": interval_dict(boot.mean(measured[at], rows[at])),
            **({} if bounded is None else {"bounds": [float(bounded[at].min()), float(bounded[at].max())]}),
        }
        for b in range(int(bins.max()) + 1)
        for at in [np.flatnonzero(bins == b)]
    ]


def _samples(audit: AuditData, seed: int) -> list[dict[str, Any]]:
    """Returns rollouts to draw: solved and failed in turn, chosen by hash; audited ones, of a task each."""
    measured = set(zip(audit.rollout_id.tolist(), audit.context.tolist(), strict=True))
    by_hash = sorted(
        (r for r in audit.rollouts if r.values and (r.rollout_id, r.context) in measured),
        key=lambda r: digest("shown", seed, r.task_id, r.context, r.rollout_id),
    )
    of_task: dict[str, AuditRollout] = {}
    for rollout in by_hash:
        of_task.setdefault(rollout.task_id, rollout)
    solved = [r for r in of_task.values() if (r.reward or 0) >= 0.5]
    failed = [r for r in of_task.values() if (r.reward or 0) < 0.5]
    num_solved = min(len(solved), max(NUM_SAMPLES // 2, NUM_SAMPLES - len(failed)))
    samples = []
    for rollout in (*solved[:num_solved], *failed[: NUM_SAMPLES - num_solved]):
        at = np.flatnonzero((audit.rollout_id == rollout.rollout_id) & (audit.context == rollout.context))
        audited = []
        for row in at[np.argsort(audit.step_index[at])]:
            bounds = wilson(float(audit.k[row]), int(audit.K[row]))
            audited.append([int(audit.step_index[row]), bounds.value, bounds.low, bounds.high])
        samples.append(asdict(rollout) | {"audited": audited})
    return samples
