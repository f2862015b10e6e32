"""Logistic regression on counts, by Newton: small, exact and without random numbers."""

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(-x)) without overflow.

    Example:
        >>> sigmoid(np.array([-1000.0, 0.0, 1000.0]))
        array([0. , 0.5, 1. ])
    """
    x = np.asarray(x, dtype=np.float64)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def logit(p: np.ndarray | float, floor: float = 1e-6) -> np.ndarray:
    """Returns log(p / (1 - p)) with p held inside [floor, 1 - floor]."""
    p = np.clip(np.asarray(p, dtype=np.float64), floor, 1.0 - floor)
    return np.log(p) - np.log1p(-p)


def binomial_regression(
    features: np.ndarray,
    num_success: np.ndarray,
    num_samples: np.ndarray,
    *,
    ridge: float | np.ndarray = 0.0,
    centre: np.ndarray | None = None,
    offset: np.ndarray | float = 0.0,
    max_steps: int = 100,
) -> np.ndarray:
    """Returns beta [D] of k ~ Bin(n, sigmoid(X beta + offset)), penalised by ridge/2 * |beta - centre|^2.

    X is [N, D]; k and n are [N] and may be fractional. Newton's steps are halved until the penalised
    likelihood does not fall.
    """
    X = np.asarray(features, dtype=np.float64)
    k = np.asarray(num_success, dtype=np.float64)
    n = np.asarray(num_samples, dtype=np.float64)
    D = X.shape[1]
    penalty = np.broadcast_to(np.asarray(ridge, dtype=np.float64), (D,))
    origin = np.zeros(D) if centre is None else np.asarray(centre, dtype=np.float64)

    def objective(beta: np.ndarray) -> float:
        z = X @ beta + offset
        likelihood = float(np.sum(k * z - n * np.logaddexp(0.0, z)))
        return likelihood - 0.5 * float(np.sum(penalty * (beta - origin) ** 2))

    beta = origin.copy()
    best = objective(beta)
    for _ in range(max_steps):
        p = sigmoid(X @ beta + offset)
        gradient = X.T @ (k - n * p) - penalty * (beta - origin)
        hessian = (X * (n * p * (1 - p))[:, None]).T @ X + np.diag(penalty)
        # A sliver on the diagonal keeps separable data finite; it does not move the optimum noticeably.
        step = np.linalg.lstsq(hessian + 1e-9 * np.eye(D), gradient, rcond=None)[0]
        scale = 1.0
        while scale > 1e-6 and objective(beta + scale * step) < best - 1e-12:
            scale *= 0.5
        if scale <= 1e-6:
            break
        beta = beta + scale * step
        now = objective(beta)
        if abs(now - best) < 1e-10 * (1.0 + abs(best)):
            break
        best = now
    return beta


def level_shift(logits: np.ndarray, num_success: np.ndarray, num_samples: np.ndarray) -> float:
    """Returns the constant that brings logits [N] to the level of counts k of n."""
    ones = np.ones((len(logits), 1))
    return float(binomial_regression(ones, num_success, num_samples, ridge=1e-6, offset=logits)[0])
