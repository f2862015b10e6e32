"""The recovery model: how likely a state still succeeds given its latest located error, task and budget.

    m_i = sigmoid(a_e + b logit(q) + c u)

e is the latest counted `wrong` event code before the state (or none), q the leave-one-out success rate of
the task in the same context, u the tokens so far over the budget. Fitted on continuation counts, folds by
task, so no state's m has seen its own task.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from critics.logit import binomial_regression, logit, sigmoid
from pipeline.ids import seed_of
from pipeline.statistics import ClusterBootstrap, interval_dict, ratio

NUM_FOLDS = 5
MIN_CONTINUATIONS, MIN_TASKS = 50, 20
"""An event code counts after this much evidence (start values)."""
_RIDGE_EVENT, _RIDGE = 1.0, 1e-3


@dataclass(frozen=True, slots=True)
class StateFeatures:
    """What the recovery model sees of a state."""

    task_id: str
    code: str  # latest `wrong` event code before the state, "" if none
    task_rate: float  # q in (0, 1)
    budget_used: float  # u in [0, 1]


@dataclass(frozen=True, slots=True)
class RecoveryModel:
    """A fitted recovery model; all codes that are not counted are one to it."""

    codes: tuple[str, ...]
    coefficients: np.ndarray | None  # [NUM_FOLDS, D] fitted without that fold's tasks; None without states
    seed: int  # of the folds

    def __call__(self, states: Sequence[StateFeatures]) -> np.ndarray:
        """Returns m [N]; without a fit, q itself."""
        if not states or self.coefficients is None:
            return np.array([state.task_rate for state in states])
        folds = np.array([fold_of(state.task_id, self.seed) for state in states])
        return sigmoid(np.sum(_features(states, self.codes) * self.coefficients[folds], axis=1))


def fold_of(task_id: str, seed: int) -> int:
    """Returns the fold of a task, in 0..NUM_FOLDS-1."""
    return seed_of("recovery fold", seed, task_id) % NUM_FOLDS


def fit_recovery(
    states: Sequence[StateFeatures], num_success: Sequence[float], num_samples: Sequence[int], *, seed: int
) -> tuple[RecoveryModel, dict[str, Any]]:
    """Returns the model of continuation counts, k of n >= 1 at each of N states, and a report of it."""
    k, n = np.asarray(num_success, np.float64), np.asarray(num_samples, np.float64)
    codes = event_report(states, k, n, seed=seed)
    counted = tuple(code for code, entry in codes.items() if entry["counted"])
    report: dict[str, Any] = {"num_states": len(states), "codes": codes}
    if not states:
        return RecoveryModel(counted, None, seed), report
    X = _features(states, counted)
    ridge = np.array([_RIDGE, *([_RIDGE_EVENT] * (len(counted) + 1)), _RIDGE, _RIDGE])
    centre = np.zeros(X.shape[1])
    centre[-2] = 1.0  # with little evidence m leans to q
    folds = np.array([fold_of(state.task_id, seed) for state in states])
    fits = []
    for fold in range(NUM_FOLDS):
        others = folds != fold
        fits.append(binomial_regression(X[others], k[others], n[others], ridge=ridge, centre=centre))
    coefficients = np.stack(fits)
    events = [f"event:{code}" for code in (*counted, "other")]
    names = ["intercept", *events, "logit_task_rate", "budget_used"]
    report["coefficients"] = dict(zip(names, coefficients.mean(axis=0).tolist(), strict=True))
    return RecoveryModel(counted, coefficients, seed), report


def event_report(
    states: Sequence[StateFeatures], k: np.ndarray, n: np.ndarray, *, seed: int
) -> dict[str, dict[str, Any]]:
    """Returns, per event code, its recovery rate with an interval by task, and whether it counts.

    It counts after `MIN_CONTINUATIONS` continuations from `MIN_TASKS` tasks and if the interval of its
    point-biserial correlation with success excludes 0. States without an error have the code "none".
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, state in enumerate(states):
        places[state.code].append(place)
    tasks = np.array([state.task_id for state in states])
    boot = ClusterBootstrap(tasks, num_resamples=500, seed=seed)
    report = {}
    for code in sorted(places):
        at = np.array(places[code])
        rate = interval_dict(boot.ratio(k[at], n[at], at))
        num_tasks = len(set(tasks[at].tolist()))
        entry: dict[str, Any] = {
            "num_continuations": int(n[at].sum()),
            "num_tasks": num_tasks,
            "recovery_rate": rate["value"],
            "low": rate["low"],
            "high": rate["high"],
            "counted": False,
        }
        if code:
            has_event = np.isin(np.arange(len(states)), at)
            found = boot.interval([n, k, n * has_event, k * has_event], _phi)
            enough = n[at].sum() >= MIN_CONTINUATIONS and num_tasks >= MIN_TASKS
            for name, number in interval_dict(found).items():
                entry["correlation" if name == "value" else f"correlation_{name}"] = number
            entry["counted"] = bool(enough and found.excludes(0))
        report[code or "none"] = entry
    return report


def _phi(N: np.ndarray, K: np.ndarray, Ne: np.ndarray, Ke: np.ndarray) -> np.ndarray:
    """Returns the correlation over samples of success (K of N) with an event (Ne samples, Ke successes)."""
    return ratio(N * Ke - K * Ne, np.sqrt(K * (N - K) * Ne * (N - Ne)))


def _features(states: Sequence[StateFeatures], codes: Sequence[str]) -> np.ndarray:
    """Returns [N, 1 + len(codes) + 1 + 2]: intercept, counted events, any other event, logit q, u."""
    place = {code: i for i, code in enumerate(codes)}
    X = np.zeros((len(states), len(place) + 4))
    X[:, 0] = 1.0
    for row, state in enumerate(states):
        if state.code:
            X[row, 1 + place.get(state.code, len(place))] = 1.0
    X[:, -2] = logit(np.array([state.task_rate for state in states]))
    X[:, -1] = [state.budget_used for state in states]
    return X
