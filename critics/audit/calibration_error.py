"""Whether a critic's percentages are right: calibration error and its floor."""

import numpy as np

from critics.audit.data import AuditData
from pipeline.statistics import UNDEFINED, Interval, cluster_codes, ratio, resample_counts

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


def _cluster_sums(codes: np.ndarray, num_clusters: int, rows: np.ndarray) -> np.ndarray:
    sums = np.zeros((num_clusters, rows.shape[1]))
    np.add.at(sums, codes, rows)
    return sums


def calibration(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns ECE with bounds of the true error, its floor and excess."""
    if not len(audit):
        return dict.fromkeys(("ece", "ece_floor", "ece_excess"), UNDEFINED)
    draws = {"num_resamples": num_resamples, "seed": seed}
    ece = calibration_error(audit.p, audit.v_hat, audit.cluster, **draws)
    return {"ece": ece} | calibration_excess(audit, **draws)


def calibration_error(
    p: np.ndarray, v_hat: np.ndarray, clusters: np.ndarray, *, num_resamples: int = 1000, seed: int = 0
) -> Interval:
    """Returns the ECE over equal-mass bins, with bounds of the *true* binned calibration error.

    Noise adds to an ECE, and the less the more there is to see; an ECE minus any floor is therefore too low
    for a miscalibrated critic, and resampling inherits that. The bounds ask instead which true errors could
    have shown this ECE. Noise: clusters resampled after each bin's gap is taken out of its
    states, so it holds continuations' noise, the critic's errors in single states and their likeness within a
    cluster. Low: what even the 97.5 % quantile of these draws leaves unexplained. High: the largest T that
    shows so low an ECE in 2.5 % of draws if every bin is off by T the same way, which is how equally noisy
    bins hide it best. No bounds with a single cluster.
    """
    member = _members(p)
    gaps = (p - v_hat) @ member / len(p)
    ece = float(np.abs(gaps).sum())
    codes, num_clusters = cluster_codes(clusters)
    if num_clusters < 2:
        return Interval(ece, np.nan, np.nan)
    sizes = _cluster_sums(codes, num_clusters, member)
    share = sizes / sizes.sum(axis=0)
    # Taking out the bin's own mean takes noise out too, the more the fewer clusters it has. A bin that lies
    # in one cluster keeps its gap: it may all be chance.
    alone = 1 - (share**2).sum(axis=0) < 1e-9
    loss = np.where(alone, 1.0, 1 - (share**2).sum(axis=0))
    sums = _cluster_sums(codes, num_clusters, member * (p - v_hat)[:, None] / len(p))
    sums -= np.where(alone, 0.0, gaps) * share
    counts = resample_counts(num_clusters, num_resamples, seed)
    noise = ((counts - 1) @ sums) / np.sqrt(loss)
    low = ece - float(np.quantile(np.abs(noise).sum(axis=1), 0.975, method="higher"))
    high = _largest_error(ece, noise, member.mean(axis=0))
    return Interval(ece, max(0.0, low), max(high, ece))


def _largest_error(ece: float, noise: np.ndarray, mass: np.ndarray) -> float:
    """Returns the largest T in [0, 1] for which an ECE at most this low is not rarer than 2.5 %.

    `noise` [B, bins] are draws of the bins' gaps, times their mass, of a calibrated critic; `mass` [bins] are
    shares of states.
    """
    largest = 0.0
    for direction in (1.0, -1.0):
        low, high = 0.0, 1.0
        for _ in range(14):
            middle = (low + high) / 2
            shown = np.abs(noise + direction * middle * mass).sum(axis=1)
            low, high = (middle, high) if np.quantile(shown, 0.025) < ece else (low, middle)
        largest = max(largest, high)
    return largest


def calibration_excess(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns `ece_floor`, what a perfect critic would show, and `ece_excess`, ECE minus this floor.

    The floor is the mean ECE of `NUM_FLOOR_DRAWS` draws k ~ Bin(K, p), or of normal ones of the measured
    noise where rewards are graded. The excess has percentile bounds over clusters, moved by the mean that
    resampling adds to a sum of absolute values.
    """
    p, gap = audit.p, audit.p - audit.v_hat
    member = _members(p)
    rng = np.random.default_rng([seed, 15])
    size = (NUM_FLOOR_DRAWS, len(p))
    if audit.squares is not None:  # a mean of graded rewards varies less than one of successes
        draws = p + np.sqrt(audit.noise) * rng.standard_normal(size)
    else:
        draws = rng.binomial(audit.K.astype(np.int64), p, size=size) / audit.K
    floor = float((np.abs((p - draws) @ member).sum(axis=1) / len(p)).mean())
    excess = float(np.abs(gap @ member).sum() / len(p)) - floor
    codes, num_clusters = cluster_codes(audit.cluster)
    low = high = np.nan
    if num_clusters >= 2:
        sums = _cluster_sums(codes, num_clusters, np.c_[member * gap[:, None], np.ones(len(p))])
        drawn = resample_counts(num_clusters, num_resamples, seed) @ sums
        errors = ratio(np.abs(drawn[:, :-1]).sum(axis=1), drawn[:, -1])
        low, high = (excess + np.quantile(errors, (0.025, 0.975)) - errors.mean()).tolist()
    return {"ece_floor": Interval(floor, np.nan, np.nan), "ece_excess": Interval(excess, low, high)}


def rising_curve(audit: AuditData) -> list[tuple[float, float]]:
    """Returns the corners (p, V) of the best map from values to measured chances that never falls (isotonic).

    For drawings only: on its flat parts all advantages would be 0.
    """
    from sklearn.isotonic import IsotonicRegression

    if not len(audit):
        return []
    curve = IsotonicRegression().fit(audit.p, audit.v_hat, sample_weight=audit.K)
    return list(zip(curve.X_thresholds_.tolist(), curve.y_thresholds_.tolist(), strict=True))
