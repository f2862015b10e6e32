"""Whether a critic's percentages are right: calibration error and its floor."""

import numpy as np

from critics.audit.data import AuditData
from pipeline.statistics import MIN_CLUSTERS, UNDEFINED, Interval, cluster_codes, ratio, resample_counts

NUM_BINS = 15
NUM_FLOOR_DRAWS = 200


def equal_mass_bins(p: np.ndarray) -> np.ndarray:
    """Returns [N] bin numbers, 0-based and without gaps; equal p share a bin, so there may be fewer."""
    if not len(p):
        return np.zeros(0, dtype=np.int64)
    edges = np.unique(np.quantile(p, np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
    return np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)[1]


def _members(p: np.ndarray) -> np.ndarray:
    """Returns [N, bins] which bin each state lies in, as 0 and 1."""
    bins = equal_mass_bins(p)
    return np.eye(int(bins.max()) + 1)[bins]


def calibration(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns `ece`, `ece_floor`, what a perfect critic would show, and `ece_excess`, ECE minus this floor.

    The floor is the mean ECE of `NUM_FLOOR_DRAWS` draws k ~ Bin(K, p), or of normal ones of the measured
    noise where rewards are graded. The excess has percentile bounds over clusters, moved by the mean that
    resampling adds to a sum of absolute values.
    """
    if not len(audit):
        return dict.fromkeys(("ece", "ece_floor", "ece_excess"), UNDEFINED)
    p, gap = audit.p, audit.p - audit.v_hat
    member = _members(p)
    rng = np.random.default_rng([seed, 15])
    size = (NUM_FLOOR_DRAWS, len(p))
    if audit.squares is not None:  # a mean of graded rewards varies less than one of successes
        draws = p + np.sqrt(audit.noise) * rng.standard_normal(size)
    else:
        draws = rng.binomial(audit.K.astype(np.int64), p, size=size) / audit.K
    floor = float((np.abs((p - draws) @ member).sum(axis=1) / len(p)).mean())
    ece = float(np.abs(gap @ member).sum() / len(p))
    excess = ece - floor
    codes, num_clusters = cluster_codes(audit.cluster)
    low = high = np.nan
    if num_clusters >= MIN_CLUSTERS:
        sums = np.zeros((num_clusters, member.shape[1] + 1))
        np.add.at(sums, codes, np.c_[member * gap[:, None], np.ones(len(p))])
        drawn = resample_counts(num_clusters, num_resamples, seed) @ sums
        errors = ratio(np.abs(drawn[:, :-1]).sum(axis=1), drawn[:, -1])
        low, high = (excess + np.quantile(errors, (0.025, 0.975)) - errors.mean()).tolist()
    return {
        "ece": Interval(ece, np.nan, np.nan),
        "ece_floor": Interval(floor, np.nan, np.nan),
        "ece_excess": Interval(excess, low, high),
    }


def rising_curve(audit: AuditData) -> list[tuple[float, float]]:
    """Returns the corners (p, V) of the best map from values to measured chances that never falls (isotonic).

    For drawings only: on its flat parts all advantages would be 0.
    """
    from sklearn.isotonic import IsotonicRegression

    if not len(audit):
        return []
    curve = IsotonicRegression().fit(audit.p, audit.v_hat, sample_weight=audit.K)
    return list(zip(curve.X_thresholds_.tolist(), curve.y_thresholds_.tolist(), strict=True))
