"""The recovery model: how likely a state still succeeds given its latest located error, task and budget.

    m_i = sigmoid(a_e + b logit(q) + c u)

e is the latest counted `wrong` event code before the state (or none), q the leave-one-out success rate of
the task in the same context, u the tokens so far over the budget. Fitted on continuation counts, folds by
task, so no state's m has seen its own task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from critics.logit import binomial_regression, logit, sigmoid
from pipeline.ids import seed_of
from pipeline.statistics import clustered_ratio

NUM_FOLDS = 5
MIN_CONTINUATIONS, MIN_TASKS = 50, 20
"""An event code counts after this much evidence (start values)."""
_RIDGE_EVENT, _RIDGE = 1.0, 1e-3


@dataclass(frozen=True, slots=True)
class StateFeatures:
    """What the recovery model sees of a state.

    Attributes:
        task_id: decides the fold.
        code: latest `wrong` event code before the state, "" if none.
        task_rate: q in (0, 1).
        budget_used: u in [0, 1].
    """

    task_id: str
    code: str
    task_rate: float
    budget_used: float


@dataclass(frozen=True, slots=True)
class RecoveryModel:
    """A fitted recovery model.

    Attributes:
        codes: counted event codes, sorted; others are treated as one code.
        coefficients: [NUM_FOLDS, D] fitted without that fold's tasks; None if there was nothing to fit.
        seed: of the folds.
    """

    codes: tuple[str, ...]
    coefficients: np.ndarray | None
    seed: int

    def __call__(self, states: Sequence[StateFeatures]) -> np.ndarray:
        """Returns m [N]; without a fit, q itself."""
        if not states:
            return np.zeros(0)
        if self.coefficients is None:
            return np.array([state.task_rate for state in states])
        folds = np.array([fold_of(state.task_id, self.seed) for state in states])
        return sigmoid(np.sum(_features(states, self.codes) * self.coefficients[folds], axis=1))


def fold_of(task_id: str, seed: int) -> int:
    """Returns the fold of a task, in 0..NUM_FOLDS-1."""
    return seed_of("recovery fold", seed, task_id) % NUM_FOLDS


def fit_recovery(
    states: Sequence[StateFeatures], num_success: Sequence[int], num_samples: Sequence[int], *, seed: int
) -> tuple[RecoveryModel, dict[str, Any]]:
    """Returns the model fitted on continuation counts, and a report of it.

    Args:
        states: [N] states with fresh continuations.
        num_success: [N] k.
        num_samples: [N] n >= 1.
        seed: of folds and intervals.

    Returns:
        The model, and `{"fitted", "num_states", "coefficients" (mean over folds), "codes": {code:
        {num_continuations, num_tasks, recovery_rate, low, high, correlation, correlation_low,
        correlation_high, counted}}}`; the code of states without an error is "none".
    """
    codes_report = event_report(states, num_success, num_samples, seed=seed)
    counted = tuple(code for code, entry in sorted(codes_report.items()) if entry["counted"])
    if not states:
        return RecoveryModel(counted, None, seed), {"fitted": False, "num_states": 0, "codes": codes_report}
    X = _features(states, counted)
    k, n = np.asarray(num_success, np.float64), np.asarray(num_samples, np.float64)
    ridge = np.array([_RIDGE, *([_RIDGE_EVENT] * (len(counted) + 1)), _RIDGE, _RIDGE])
    centre = np.zeros(X.shape[1])
    centre[-2] = 1.0  # with little evidence m leans to q
    folds = np.array([fold_of(state.task_id, seed) for state in states])
    fits = []
    for fold in range(NUM_FOLDS):
        others = folds != fold
        fits.append(binomial_regression(X[others], k[others], n[others], ridge=ridge, centre=centre))
    names = [
        "intercept",
        *(f"event:{code}" for code in counted),
        "event:other",
        "logit_task_rate",
        "budget_used",
    ]
    coefficients = np.stack(fits)
    report = {
        "fitted": True,
        "num_states": len(states),
        "coefficients": dict(zip(names, coefficients.mean(axis=0).round(6).tolist(), strict=True)),
        "codes": codes_report,
    }
    return RecoveryModel(counted, coefficients, seed), report


def event_report(
    states: Sequence[StateFeatures], num_success: Sequence[int], num_samples: Sequence[int], *, seed: int
) -> dict[str, dict[str, Any]]:
    """Returns, per event code, its recovery rate with an interval by task, and whether it counts.

    It counts after `MIN_CONTINUATIONS` continuations from `MIN_TASKS` tasks and if the interval of its
    point-biserial correlation with success excludes 0.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, state in enumerate(states):
        places[state.code].append(place)
    k, n = np.asarray(num_success, np.float64), np.asarray(num_samples, np.float64)
    tasks = [state.task_id for state in states]
    report = {}
    for code in sorted(places):
        at = np.array(places[code])
        rate = clustered_ratio(k[at], n[at], [tasks[i] for i in at], num_resamples=500, seed=seed)
        num_tasks = len({tasks[i] for i in at})
        entry: dict[str, Any] = {
            "num_continuations": int(n[at].sum()),
            "num_tasks": num_tasks,
            "recovery_rate": rate.value,
            "low": _number(rate.low),
            "high": _number(rate.high),
        }
        if code:
            low, value, high = _correlation(np.isin(np.arange(len(states)), at), k, n, tasks, seed)
            enough = n[at].sum() >= MIN_CONTINUATIONS and num_tasks >= MIN_TASKS
            entry |= {"correlation": _number(value), "correlation_low": _number(low)}
            entry |= {"correlation_high": _number(high), "counted": bool(enough and (low > 0 or high < 0))}
        else:
            entry["counted"] = False
        report[code or "none"] = entry
    return report


def _number(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _correlation(
    has_event: np.ndarray,
    k: np.ndarray,
    n: np.ndarray,
    tasks: Sequence[str],
    seed: int,
    num_resamples: int = 500,
) -> tuple[float, float, float]:
    """Returns low, value, high of corr(event, success) over samples, resampling tasks."""
    _, codes = np.unique(np.asarray(tasks), return_inverse=True)
    columns = [n, k, n * has_event, k * has_event]
    sums = np.stack([np.bincount(codes, weights=column) for column in columns])

    def phi(totals: np.ndarray) -> np.ndarray:
        N, K, Ne, Ke = totals
        spread = K * (N - K) * Ne * (N - Ne)
        return np.where(spread > 0, (N * Ke - K * Ne) / np.sqrt(np.where(spread > 0, spread, 1.0)), np.nan)

    value = float(phi(sums.sum(axis=1)))
    num_tasks = sums.shape[1]
    if num_tasks < 2 or not np.isfinite(value):
        return float("nan"), value, float("nan")
    drawn = np.random.default_rng(seed).integers(num_tasks, size=(num_resamples, num_tasks))
    draws = phi(sums[:, drawn].sum(axis=2))
    low = float(np.quantile(np.where(np.isnan(draws), -np.inf, draws), 0.025, method="lower"))
    high = float(np.quantile(np.where(np.isnan(draws), np.inf, draws), 0.975, method="higher"))
    return low, value, high


def _features(states: Sequence[StateFeatures], codes: Mapping[str, int] | Sequence[str]) -> np.ndarray:
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
