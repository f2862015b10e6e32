"""What a critic says of steps beyond its own V(s_0) and the number of the step.

Rollouts that have come far are the likelier to succeed, so E[V | task, step number] passes EV_within and
rho_A though it reads no step. Sibling steps tell such a critic, as they share all that it knows; this does
where none were sampled.
"""

from dataclasses import replace

import numpy as np

from critics.audit.baselines import cross_fitted
from critics.audit.data import AuditData
from critics.audit.measures import centred
from critics.logit import logit
from pipeline.statistics import UNDEFINED, ClusterBootstrap, Interval, positive

NAME = "its own V(s_0) and the step number alone"
"""Of the reference."""


def start_and_step(audit: AuditData) -> np.ndarray:
    """Returns p [N]: for each step number a line in the value of the rollout's first audited state.

    Of log-odds, `cross_fitted`.
    """
    from sklearn.linear_model import LogisticRegression

    if not len(audit):
        return np.zeros(0)
    order = np.lexsort((audit.step_index, groups := audit.groups()))
    first = order[np.unique(groups[order], return_index=True)[1]]
    steps = np.eye(int(audit.step_index.max()) + 1)[audit.step_index]
    features = np.column_stack([steps, steps * logit(audit.p[first])[groups][:, None]])
    return cross_fitted(audit, features, LogisticRegression(C=100.0, max_iter=1000))


def beyond_start(audit: AuditData, boot: ClusterBootstrap) -> Interval:
    """Returns Cov(p, Vhat) / Var(Vhat) within rollouts, each less what `start_and_step` says of it.

    0 of a critic that says no more than that, 1 of the truth. The variance is debiased for the finite K; the
    noise of Vhat is not in p, so the covariance needs no such thing.
    """
    if not len(audit):
        return UNDEFINED
    groups = audit.groups()
    of_values = start_and_step(replace(audit, k=audit.p * audit.K, squares=None))
    ours = centred(audit.p - of_values, groups)
    measured = centred(audit.v_hat - start_and_step(audit), groups)
    noise = (1 - 1 / np.bincount(groups)[groups]) * audit.noise
    columns = [ours * measured, measured**2 - noise]
    return boot.interval(columns, lambda both, left: both / positive(left))
