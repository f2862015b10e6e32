"""References that a critic must beat; each is given an advantage rather than a handicap.

All return p [N] for the audited states.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from critics.audit.data import AuditData
from critics.logit import binomial_regression, sigmoid

PRIORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 1e9)
"""Rollouts that the mean may count for in a task's rate; the last one makes it the constant."""
NUM_FOLDS = 5
"""Of clusters, in `cross_fitted`."""


def constant(audit: AuditData) -> np.ndarray:
    """Returns the audited states' own mean success: the best constant there is for them."""
    return np.full(len(audit), audit.v_hat.mean() if len(audit) else 0.5)


def task_rate(audit: AuditData) -> np.ndarray:
    """Returns the success rate of the *other* rollouts of the state's task in the state's context.

    (k + s mean) / (n + s): what few rollouts leave open is `constant`, and s is whichever of `PRIORS` has the
    lowest Brier score on the audited states themselves. One rollout says much of its task in some worlds and
    little in others; a fixed s, or a pull to one half, would be a handicap. Leaving out the state's own
    rollout keeps it from knowing the state's own ending.
    """
    totals: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(2))
    own: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(2))
    for rollout in audit.rollouts:
        if rollout.reward is not None:
            counted = np.array([rollout.reward, 1.0])
            totals[rollout.task_id, rollout.context] += counted
            own[rollout.rollout_id, rollout.context] = counted
    places = zip(audit.task_id.tolist(), audit.rollout_id.tolist(), audit.context.tolist(), strict=True)
    others = [totals[task, context] - own[rollout, context] for task, rollout, context in places]
    k, n = np.array(others).reshape(len(audit), 2).T
    rates = [(k + s * constant(audit)) / (n + s) for s in PRIORS]
    return _nearest(audit, rates)


def position_only(audit: AuditData) -> np.ndarray:
    """Returns the better of two functions of the position, both fitted on the audited counts themselves.

    A logistic line in the share of the budget used, and the mean of each step number, with `mean` as one
    more sample. A critic's calibrator shifts each step by itself, so a line alone would let a critic pass
    that knows the step number and nothing else.
    """
    if not len(audit):
        return np.zeros(0)
    features = np.stack([np.ones(len(audit)), audit.position], axis=1)
    line = sigmoid(features @ binomial_regression(features, audit.k, audit.K, ridge=1e-3))
    steps = audit.step_index
    k, K = (np.bincount(steps, weights=counts) for counts in (audit.k, audit.K))
    return _nearest(audit, [line, ((k + constant(audit)[0]) / (K + 1))[steps]])


def errors_so_far(audit: AuditData) -> np.ndarray:
    """Returns a logistic regression on the verdicts before each state, its step and position, `cross_fitted`.

    What a critic that is told verdicts could say by counting them, without reading a word. It has too many
    features to be fitted on what it is judged by; other clusters' fresh continuations are advantage enough.
    """
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    if not len(audit):
        return np.zeros(0)
    counts = DictVectorizer(sparse=False).fit_transform(audit.verdicts_before())
    steps = np.eye(int(audit.step_index.max()) + 1)[audit.step_index]
    features = np.column_stack([counts, steps, audit.position])
    return cross_fitted(audit, features, LogisticRegression(max_iter=1000))


def cross_fitted(audit: AuditData, features: np.ndarray, classifier: Any) -> np.ndarray:
    """Returns p [N] by a scikit-learn classifier of features [N, D], each state's fitted on other clusters.

    In `NUM_FOLDS` folds; with a single cluster, on itself.
    """
    from sklearn.model_selection import GroupKFold

    share, p, number = audit.v_hat, np.zeros(len(audit)), len(set(audit.cluster.tolist()))
    everything = np.arange(len(audit))
    folds = [(everything, everything)]
    if number > 1:
        folds = list(GroupKFold(min(NUM_FOLDS, number)).split(features, groups=audit.cluster))
    for fit, told in folds:
        if np.ptp(share[fit]) == 0:  # nothing to fit, and the round-off of a fit would count as an error
            p[told] = share[fit[0]]
            continue
        # Each state is one success and one failure, weighted by how often they were sampled.
        outcomes, weights = np.repeat([1, 0], len(fit)), np.concatenate([share[fit], 1 - share[fit]])
        classifier.fit(features[[*fit, *fit]], outcomes, sample_weight=weights)
        p[told] = classifier.predict_proba(features[told])[:, 1]
    return p


def _nearest(audit: AuditData, estimates: list[np.ndarray]) -> np.ndarray:
    return min(estimates, key=lambda p: float(((p - audit.v_hat) ** 2).sum()))


def split_counts(audit: AuditData, num: int, seed: int) -> AuditData:
    """Returns the audit of `num` of each state's continuations as the estimate, judged by the others.

    Needs K >= num + 2 throughout. Drawn without replacement, so the parts are independent given V.
    """
    rng = np.random.default_rng([seed, num])
    seen = rng.hypergeometric(audit.k.astype(np.int64), (audit.K - audit.k).astype(np.int64), num)
    return replace(audit, p=seen / num, k=audit.k - seen, K=audit.K - num)


BASELINES: dict[str, Callable[[AuditData], np.ndarray]] = {
    "constant": constant,
    "task_rate": task_rate,
    "position": position_only,
    "errors_so_far": errors_so_far,
}
