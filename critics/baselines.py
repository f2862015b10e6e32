"""References that a critic must beat; each is given an advantage rather than a handicap.

All return p [N] for the audited states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from critics.audit import AuditData
from critics.logistic import binomial_regression, sigmoid


def constant(audit: AuditData) -> np.ndarray:
    """Returns the audited states' own mean success: the best constant there is for them."""
    return np.full(len(audit), audit.v_hat.mean() if len(audit) else 0.5)


def task_rate(audit: AuditData) -> np.ndarray:
    """Returns (k + 1) / (n + 2) over the *other* rollouts of the state's task in the state's context.

    It knows outcomes on the audited tasks, which the critic does not; leaving out the state's own rollout
    keeps it from knowing the state's own ending.
    """
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    rewards = {}
    for rollout in audit.rollouts:
        if rollout.reward is not None:
            rewards[rollout.rollout_id, rollout.context] = rollout.reward
            totals[rollout.task_id, rollout.context][0] += rollout.reward
            totals[rollout.task_id, rollout.context][1] += 1
    rates = []
    for row in range(len(audit)):
        k, n = totals[str(audit.task_id[row]), str(audit.context[row])]
        own = rewards.get((str(audit.rollout_id[row]), str(audit.context[row])))
        if own is not None:
            k, n = k - own, n - 1
        rates.append((k + 1) / (n + 2))
    return np.array(rates)


def position_only(audit: AuditData) -> np.ndarray:
    """Returns a logistic function of the position, fitted on the audited counts themselves."""
    features = np.stack([np.ones(len(audit)), audit.position], axis=1)
    beta = binomial_regression(features, audit.k, audit.K, ridge=1e-3)
    return sigmoid(features @ beta)


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
}
