"""Looks at a fit: has it converged, and which weights are best? By paired comparisons of held-out Briers."""

import math
from typing import Any

import numpy as np

from critics.audit.measures import explained_within
from critics.fit.held_out import HeldOut
from critics.fit.schedule import Schedule
from critics.labels.soft_targets import state_weight
from critics.logit import level_shift, sigmoid
from pipeline.statistics import ClusterBootstrap, resample_counts
from pipeline.training import Trainer

NUM_RESAMPLES = 500
MIN_GROUPS_WITHIN = 10
"""EV_within is judged on at least this many rollouts with two or more sampled states."""
FRESH: dict[str, Any] = {
    "evaluations": [],
    "task_brier": {},
    "reference": None,
    "kept": [],
    "loss_sum": 0.0,
    "loss_count": 0,
}
"""What a fit knows of itself before its first look, JSON-serialisable; nothing in it changes in place."""


def evaluate(
    trainer: Trainer, validation: HeldOut, plan: Schedule, shift: float, now: dict[str, Any], seed: int
) -> list[int]:
    """Notes in `now` how the present weights do; returns evaluations that can no longer become the best.

    `shift` is b0, which is added to the logits.
    """
    z = validation.logits(trainer) + shift
    # Each batch moves the level of all values, which calibration sets anyway: what is left is judged.
    n = validation.num_samples.astype(np.float64)
    weights = state_weight(n)  # as `task_brier` weighs them
    p = sigmoid(z + level_shift(z, weights * validation.num_success / n, weights))
    brier = task_brier(p, validation)
    update, number = trainer.num_updates, len(now["evaluations"])
    # A gain counts from the last evaluation that gained a whole standard error: small gains add up.
    reference = now["reference"]
    gain = gain_se = None
    if reference is not None:
        before = np.array(now["task_brier"][str(reference)])
        gain, gain_se = float(np.mean(before - brier)), paired_se(before, brier, seed)
    improved = gain is None or gain_se is None or gain >= max(gain_se, 1e-12)
    # Phase 1 cannot converge: most weights have not moved yet.
    stale = 0 if improved or update <= plan.head else now["evaluations"][-1]["stale"] + 1
    entry = {
        "number": number,
        "update": update,
        "epoch": plan.epochs(update),
        "phase": "head" if update <= plan.head else "all",
        "train_loss": now["loss_sum"] / now["loss_count"] if now["loss_count"] else None,
        "brier": float(brier.mean()),
        "brier_se": paired_se(brier, np.zeros_like(brier), seed),
        "ev_within": ev_within(p, validation),
        "bias": float(np.mean(sigmoid(z) - validation.num_success / n)),
        "gain": gain,
        "gain_se": gain_se,
        "stale": stale,
    }
    candidates = [*now["kept"], number]
    # Fresh lists and tables, so that a state handed to `checkpoint` never changes afterwards.
    now |= {
        "reference": number if improved else reference,
        "task_brier": now["task_brier"] | {str(number): brier.tolist()},
        "evaluations": [*now["evaluations"], entry],
    }
    now["kept"] = _contenders(candidates, now, seed)
    needed = {str(i) for i in (*now["kept"], now["reference"])}
    now["task_brier"] = {key: value for key, value in now["task_brier"].items() if key in needed}
    return [i for i in candidates[:-1] if i not in now["kept"]]


def task_brier(p: np.ndarray, validation: HeldOut) -> np.ndarray:
    """Returns what each task adds to the weighted mean Brier of all states, tasks in sorted order.

    Dividing by a task's own weight instead would make the states of a rollout that ends early, and so is the
    likelier a failure, weigh more.
    """
    share = validation.num_success / validation.num_samples
    terms = (p - share) ** 2 + share * (1 - share)
    weights = state_weight(validation.num_samples.astype(np.float64))
    _, tasks = np.unique(validation.task_id, return_inverse=True)
    return np.bincount(tasks, weights=weights * terms) * ((tasks.max() + 1) / weights.sum())


def paired_se(ours: np.ndarray, theirs: np.ndarray, seed: int) -> float:
    """Returns the bootstrap standard error, by task, of mean(ours - theirs)."""
    counts = resample_counts(len(ours), NUM_RESAMPLES, seed)
    return float((counts @ (ours - theirs) / len(ours)).std())


def ev_within(p: np.ndarray, validation: HeldOut) -> float | None:
    """Returns EV_within on fresh continuations; None if undefined or of too few rollouts."""
    at = validation.fresh_samples >= 2
    groups, K = validation.row[at], validation.fresh_samples[at]
    if np.count_nonzero(np.bincount(groups) >= 2) < MIN_GROUPS_WITHIN:
        return None
    V = validation.fresh_success[at] / K
    noise = np.maximum(V - V**2, 0.0) / (K - 1)
    value = explained_within(p[at], V, noise, groups, ClusterBootstrap(validation.task_id[at])).value
    return float(value) if math.isfinite(value) else None


def best_of(now: dict[str, Any]) -> int:
    """Returns the number of the evaluation that gave the critic its weights, see `FitResult.best`."""
    entries = now["evaluations"]
    if all(entries[i]["ev_within"] is not None for i in now["kept"]):
        return max(now["kept"], key=lambda i: (entries[i]["ev_within"], -entries[i]["brier"], i))
    return min(now["kept"], key=lambda i: (entries[i]["brier"], i))


def _contenders(candidates: list[int], now: dict[str, Any], seed: int) -> list[int]:
    """Returns the candidates within one paired standard error of the lowest Brier among them."""
    brier = {i: np.array(now["task_brier"][str(i)]) for i in candidates}
    best = brier[min(candidates, key=lambda i: (now["evaluations"][i]["brier"], i))]
    return [i for i in candidates if np.mean(brier[i] - best) <= paired_se(brier[i], best, seed)]
