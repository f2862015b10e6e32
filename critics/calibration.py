"""The map from value logits to probabilities: p = sigmoid(a (z + b0) + c), a > 0, so strictly monotone.

States after feedback are states of failed tasks, harder than they look; they shift on their own, so that they
cannot bias the bare ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from critics.logistic import binomial_regression, sigmoid
from pipeline.errors import ArtifactError

MIN_STATES_FOR_SHIFT = 200
"""Below this many states only the temperature is fitted (start value)."""
MIN_SAMPLES_OF_POSITION = 30
"""Positions from here on that have fewer samples together count as one (start value)."""
MAX_POSITION_WEIGHT = 10.0
"""No position's few labels decide a calibration (start value)."""
MIN_SLOPE = 1e-3
"""A critic that ranks backwards is flattened to this slope, never inverted."""


@dataclass(frozen=True, slots=True)
class Calibrator:
    """Platt's map (Platt 1999) of one family.

    Attributes:
        slope: a > 0.
        shift: c, in log-odds.
        base_logit: b0 = logit of the base rate the critic was fitted around.
        num_states: what it was fitted on.
        guided_shift: added to c for states after feedback.
    """

    slope: float
    shift: float
    base_logit: float
    num_states: int = 0
    guided_shift: float = 0.0

    def __call__(self, z: np.ndarray, *, guided: bool = False) -> np.ndarray:
        """Returns calibrated probabilities of raw value logits z, same shape, float64 in (0, 1)."""
        shift = self.shift + self.guided_shift if guided else self.shift
        return sigmoid(self.slope * (np.asarray(z, dtype=np.float64) + self.base_logit) + shift)


def position_weights(step_index: np.ndarray, num_samples: np.ndarray, played: np.ndarray) -> np.ndarray:
    """Returns the weight of each labelled state, with which positions count as often as they are played.

    Labels crowd at some turns (a rollout's own outcome labels turns 0, 1, 2, 4 and 8), and one map of two
    numbers fits best where most labels are. A critic is used at every step, so it is calibrated for that.

    Args:
        step_index: [N] of the labelled states.
        num_samples: [N] n >= 1.
        played: [M] step indices of all states of the rollouts, labelled or not.

    Returns:
        [N] weights >= 0, at most `MAX_POSITION_WEIGHT` times the mean; late positions with few samples are
        counted together.
    """
    samples = np.bincount(step_index, weights=num_samples)
    enough = np.flatnonzero(np.cumsum(samples[::-1])[::-1] >= MIN_SAMPLES_OF_POSITION)
    last = int(enough[-1]) if len(enough) else 0
    labelled = np.bincount(np.minimum(step_index, last), weights=num_samples, minlength=last + 1)
    present = np.bincount(np.minimum(played, last), minlength=last + 1)
    ratio = present / np.maximum(labelled, 1) * num_samples.sum() / max(1, len(played))
    return np.minimum(ratio, MAX_POSITION_WEIGHT)[np.minimum(step_index, last)]


def check_states(number: int) -> None:
    """Raises ArtifactError if there is no state to calibrate on."""
    if not number:
        raise ArtifactError(
            "no labelled state with a sample lies in the clusters that calibrate the critic; at least 1 is "
            "needed. Next: more labels (labels.max_states, labels.num_continuations), tasks of more "
            "companies (tasks.num_companies), or a smaller critic.fit_share"
        )


def fit_calibrator(
    z: np.ndarray,
    num_success: np.ndarray,
    num_samples: np.ndarray,
    *,
    base_logit: float,
    guided: np.ndarray | None = None,
) -> Calibrator:
    """Returns the maximum-likelihood calibrator of counts k of n given raw value logits.

    Fewer than `MIN_STATES_FOR_SHIFT` states: a alone, c = 0. With at least that many of both kinds, a and c
    are those of the bare states and the guided ones get a shift of their own; else one map serves both.

    Args:
        z: [N] raw value logits.
        num_success: [N] k, or k times a weight.
        num_samples: [N] n >= 1, or n times the same weight.
        base_logit: b0.
        guided: [N] whether the state lies after feedback; None: none does.

    Raises:
        ArtifactError: no states.
    """
    check_states(len(z))
    if guided is not None and min(int(guided.sum()), int((~guided).sum())) >= MIN_STATES_FOR_SHIFT:
        bare = ~guided
        shared = fit_calibrator(z[bare], num_success[bare], num_samples[bare], base_logit=base_logit)
        offset = shared.slope * (np.asarray(z[guided], dtype=np.float64) + base_logit) + shared.shift
        k, n = (np.asarray(counts[guided], dtype=np.float64) for counts in (num_success, num_samples))
        extra = binomial_regression(np.ones((len(offset), 1)), k, n, ridge=1e-6, offset=offset)[0]
        return replace(shared, num_states=len(z), guided_shift=float(extra))
    x = np.asarray(z, dtype=np.float64) + base_logit
    k, n = np.asarray(num_success, dtype=np.float64), np.asarray(num_samples, dtype=np.float64)
    shifted = len(x) >= MIN_STATES_FOR_SHIFT
    # The faint pull to slope 1 decides only where the data say nothing: constant z, or perfect separation.
    pull = 1e-3
    if shifted:
        features = np.stack([x, np.ones_like(x)], axis=1)
        beta = binomial_regression(features, k, n, ridge=np.array([pull, 1e-6]), centre=np.array([1.0, 0.0]))
        slope, shift = float(beta[0]), float(beta[1])
    else:
        slope = float(binomial_regression(x[:, None], k, n, ridge=pull, centre=np.ones(1))[0])
        shift = 0.0
    if slope < MIN_SLOPE:
        slope = MIN_SLOPE
        if shifted:
            ones = np.ones((len(x), 1))
            shift = float(binomial_regression(ones, k, n, ridge=1e-6, offset=slope * x)[0])
    return Calibrator(slope, shift, base_logit, len(x))
