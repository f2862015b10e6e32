"""The map from value logits to probabilities, monotone at any step.

    p = sigmoid(h(z + b0) + c + d_i),   h(x) = a_high softplus(x) - a_low softplus(-x),   a_low, a_high > 0

h has the slope a_low far below 0 and a_high far above: beta calibration (Kull et al. 2017), Platt's map where
both are equal. A critic may be overconfident of failures and timid of successes. d_i belongs to step i. A
critic that is fitted on few labels is off by points at some steps, at all states of the step alike, and one
map for all steps cannot mend that. States after feedback are states of failed tasks, harder than they look;
they shift on their own, so that they cannot bias the bare ones. A critic with the privileged input `features`
has a shift f more for each count x of verdicts before a state: + f x, summed (`critics.privileged`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from critics.logit import binomial_regression, logit, sigmoid
from critics.privileged import Counts

MIN_ROLLOUTS_FOR_SHIFT = 200
"""Below this many rollouts only the temperature is fitted, a_low = a_high, and f (start value)."""
POSITIONS = 8
"""Steps with a shift of their own: 0, 1, ..., 6, and all later ones together (start value)."""
SHIFT_RIDGE = 4.0
"""What holds shifts by step and by context near 0: a prior of standard deviation 1/2 (start value). It counts
against rollouts: their states share one outcome, and as so many samples they would outweigh it."""
VERDICT_RIDGE = 0.25
"""The same for shifts by verdicts, which may mean certain failure: standard deviation 2 (start value)."""
MIN_SLOPE = 1e-3
"""A critic that ranks backwards is flattened to this slope, never inverted."""


@dataclass(frozen=True, slots=True)
class Calibrator:
    """The map of one family."""

    slope_low: float  # a_low > 0
    slope_high: float  # a_high > 0
    shift: float  # c, in log-odds
    base_logit: float  # b0, logit of the base rate the critic was fitted around
    num_states: int = 0  # what it was fitted on
    guided_shift: float = 0.0  # added to c for states after feedback
    position_shifts: tuple[float, ...] = ()  # d_0, d_1, ...; the last one counts for all later steps too
    verdict_shifts: Mapping[str, float] = field(default_factory=dict)  # f by name of what is counted

    def __call__(
        self,
        z: np.ndarray,
        *,
        step_index: np.ndarray | None = None,
        guided: bool | np.ndarray = False,
        told: Sequence[Counts] | None = None,
    ) -> np.ndarray:
        """Returns calibrated probabilities of raw value logits, [N] float64 in (0, 1).

        `step_index` [N] says which step each state lies before, `told` [N] what verdicts before it say;
        shifts by either need it (ValueError).
        """
        shift = self.shift + self.guided_shift * np.asarray(guided)
        if self.position_shifts:
            if step_index is None:
                raise ValueError("this calibrator has a shift for each step; say each state's step_index")
            last = len(self.position_shifts) - 1
            shift = shift + np.asarray(self.position_shifts)[np.minimum(step_index, last)]
        if self.verdict_shifts:
            if told is None:
                raise ValueError("this calibrator has shifts by verdicts; say what comes before each state")
            shift = shift + _columns(told, list(self.verdict_shifts)) @ [*self.verdict_shifts.values()]
        x = np.asarray(z, dtype=np.float64) + self.base_logit
        return sigmoid(_sides(x) @ np.array([self.slope_low, self.slope_high]) + shift)


def _sides(x: np.ndarray) -> np.ndarray:
    """Returns [..., 2]: -softplus(-x) and softplus(x), which sum to x."""
    return np.stack([-np.logaddexp(0.0, -x), np.logaddexp(0.0, x)], axis=-1)


def _columns(told: Sequence[Counts], names: Sequence[str]) -> np.ndarray:
    """Returns [N, D] counts of D names; a name that a state has not is 0."""
    counts = [[of_state.get(name, 0.0) for name in names] for of_state in told]
    return np.array(counts, dtype=np.float64).reshape(len(told), len(names))


def fit_calibrator(
    z: np.ndarray,
    num_success: np.ndarray,
    num_samples: np.ndarray,
    *,
    base_logit: float,
    step_index: np.ndarray | None = None,
    guided: np.ndarray | None = None,
    rollout: np.ndarray | None = None,
    told: Sequence[Counts] | None = None,
) -> Calibrator:
    """Returns the maximum-likelihood calibrator of counts k of n > 0 given raw value logits, N >= 1 states.

    All but the guided shift is of bare states, if there are any. Fewer than `MIN_ROLLOUTS_FOR_SHIFT` rollouts
    of theirs: one slope, and of shifts of theirs only those by verdicts, which a prior holds. Without
    `step_index` there are no shifts by step, without `told` none by verdicts; each state is of a rollout of
    its own unless `rollout` [N] says of which.
    """
    after = np.zeros(len(z), dtype=bool) if guided is None else guided
    of = np.arange(len(z)) if rollout is None else rollout
    apart = bool(after.any()) and not after.all()
    own = ~after if apart else np.ones(len(z), dtype=bool)
    steps = None if step_index is None else step_index[own]
    counts = num_success[own], num_samples[own]
    num_rollouts = len(np.unique(of[own]))
    words = None if told is None else _where(told, own)
    fitted = _fit(np.asarray(z, dtype=np.float64)[own], *counts, base_logit, steps, words, num_rollouts)
    if not apart:
        return fitted
    steps = None if step_index is None else step_index[after]
    words = None if told is None else _where(told, after)
    offset = logit(fitted(z[after], step_index=steps, told=words), floor=1e-12)
    counts = num_success[after], num_samples[after]
    ridge = SHIFT_RIDGE * len(offset) / len(np.unique(of[after]))
    extra = binomial_regression(np.ones((len(offset), 1)), *counts, ridge=ridge, offset=offset)[0]
    return replace(fitted, num_states=len(z), guided_shift=float(extra))


def _where(told: Sequence[Counts], mask: np.ndarray) -> list[Counts]:
    return [counts for counts, kept in zip(told, mask, strict=True) if kept]


def _fit(
    z: np.ndarray,
    num_success: np.ndarray,
    num_samples: np.ndarray,
    base_logit: float,
    step_index: np.ndarray | None,
    told: Sequence[Counts] | None,
    num_rollouts: int,
) -> Calibrator:
    x = z + base_logit
    # The faint pull to slope 1 decides only where the data say nothing: constant z, or perfect separation.
    pull = 1e-3
    sides, shifts, ridges = _sides(x), np.ones((len(z), 1)), [1e-6]
    if few := num_rollouts < MIN_ROLLOUTS_FOR_SHIFT:
        sides, shifts, ridges = x[:, None], np.ones((len(z), 0)), []
    elif step_index is not None:
        ridges += [SHIFT_RIDGE * len(z) / num_rollouts] * POSITIONS
        shifts = np.hstack([shifts, np.eye(POSITIONS)[np.minimum(step_index, POSITIONS - 1)]])
    names = sorted(set().union(*told)) if told is not None else []
    if told is not None and names:
        ridges += [VERDICT_RIDGE * len(z) / num_rollouts] * len(names)
        shifts = np.hstack([shifts, _columns(told, names)])
    slopes, free = np.full(sides.shape[1], MIN_SLOPE), np.ones(sides.shape[1], dtype=bool)
    while True:  # A slope that would be below the least one is held there, and the rest is fitted again.
        if not free.any() and not ridges:
            beta = np.zeros(0)
            break
        beta = binomial_regression(
            np.hstack([sides[:, free], shifts]),
            num_success,
            num_samples,
            ridge=np.array([*[pull] * int(free.sum()), *ridges]),
            centre=np.array([*np.ones(int(free.sum())), *np.zeros(len(ridges))]),
            offset=sides[:, ~free] @ slopes[~free],
        )
        slopes[free] = beta[: free.sum()]
        if not (slopes < MIN_SLOPE).any():
            break
        free &= slopes >= MIN_SLOPE
        slopes[~free] = MIN_SLOPE
    common, *others = [0.0] * few + beta[len(beta) - len(ridges) :].tolist()
    low, high = slopes[[0, -1]].tolist()
    by_step, by_verdict = others[: len(others) - len(names)], others[len(others) - len(names) :]
    return Calibrator(
        low,
        high,
        common,
        base_logit,
        len(z),
        position_shifts=tuple(by_step),
        verdict_shifts=dict(zip(names, by_verdict, strict=True)),
    )
