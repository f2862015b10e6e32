"""V-DAPO's credit: a group advantage over a shrunken baseline, plus the frozen critic's step advantages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from pipeline.credit.group import broadcast, leave_one_out_mean, rms, set_metrics
from pipeline.credit.mode import Mode
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet, with_values_of_others
from pipeline.credit.step_advantages import step_part

_LOSS = LossOptions(kl=1e-3)
_STEP_CLIP = 3.0  # bound on a scaled step advantage
_MIN_SCALE = 0.05  # floor of the sigmas
_SCALE_DECAY = 0.9  # of the running scales, per update
_WRONG_GATE = 0.5  # g in all-wrong sets; elsewhere g = 1

_Parts = tuple[CreditSet, np.ndarray, list[np.ndarray]]
"""A set, its [G] group advantages and its G arrays [T_i] of step advantages, neither scaled."""


def shrinkage_baseline(rewards: np.ndarray, start_values: np.ndarray) -> np.ndarray:
    """Returns each rollout's baseline b = m + w (V_0 - m): the others' mean, drawn to the critic's V_0.

    m is the mean reward of the others; pt = (sum of others + 1)/(G + 1) their smoothed rate;
    s2 = pt (1 - pt)/(G - 1) the variance of m; w = s2 / max(s2, (V_0 - m)^2). So w = 1 while the critic
    lies within one standard error of what the others earned, and falls when they contradict it.
    No baseline sees its own rollout's reward. G = 1: b = V_0.

    Rewards [G] are raw and in [0, 1]; start values [G] are equal throughout, as the prompts are.

    Source: DESIGN.md, "Credit"; the idea of shrinking to a learned value: arXiv:2603.10848.

    Example:
        One of four succeeded where the critic expected one half. The failures' others (1/3) agree with
        it; those of the success (0 of 3) do not, and draw its baseline down.

        >>> shrinkage_baseline(np.array([1.0, 0.0, 0.0, 0.0]), np.full(4, 0.5)).round(3)
        array([0.107, 0.5  , 0.5  , 0.5  ])
    """
    size = len(rewards)
    if size == 1:
        return start_values.copy()
    mean = leave_one_out_mean(rewards)
    rate = (mean * (size - 1) + 1.0) / (size + 1.0)
    variance = rate * (1.0 - rate) / (size - 1)
    weight = variance / np.maximum(variance, np.square(start_values - mean))
    return mean + weight * (start_values - mean)


def all_wrong_gate(step_advantages: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Returns [T] g of one rollout of an all-wrong set: one half, but 0 where the verifier disagrees.

    Nothing in such a set checks the critic but the verifier, so a step on which it has spoken counts only if
    both have the same sign; a step of which it knows nothing (0) keeps the gate.

    Example:
        >>> all_wrong_gate(np.array([0.2, 0.2, -0.2]), np.array([1, -1, 0]))
        array([0.5, 0. , 0.5])
    """
    agrees = (signs == 0) | (np.sign(step_advantages) == signs)
    return np.where(agrees, _WRONG_GATE, 0.0)


@dataclass(frozen=True, slots=True)
class VDapo(Mode):
    """Group advantage plus alpha times step advantage, each divided by its own running scale.

    A_i = A_grp / max(sigma_grp, .05) + alpha * g * clip(step_i / max(sigma_step, .05), -3, 3).
    step_i is `step_part` at lam, in all-wrong sets at lam = 0: there A_i(lam) is the same failure at every
    step, while V_{i+1} - V_i can tell the good steps from the error. The sigmas are root mean squares over
    *earlier* updates (EMA of the squares, decay .9; 1 at the first update), so no advantage is scaled by
    itself. With exact values the step part leaves the expected gradient's direction unchanged and lowers its
    variance; dead zone, clips, gate and critic error add bias.

    Attributes:
        loss: what it asks of the loss; the KL keeps the actor near the policy that it begins with. After a
            stored phase that is another one than the critic was judged on.
        alpha: weight of the step part; 0 leaves the group part alone.
        lam: trace decay per step. At 1 both parts are one signal: use less, or `step_only`.
        adv_rmse: the critic's error on advantages, from its gate.
        baseline: "shrinkage"; "group_mean" is the set's own mean (decoupled clip's; sees its own outcome).
        scale: "running"; "group_std" divides by the set's standard deviation (decoupled clip's).
        step_only: drops the group part (ablation).
        shuffled: each rollout has another one's values (lower bound of any critic's use).

    Source: DESIGN.md, "Credit". Step differences as rewards: arXiv:2410.08146. Parts scaled apart:
    arXiv:2505.10978. Numbers are start values of ours.
    """

    loss: LossOptions = _LOSS
    overlong_factor: float = 0.0
    alpha: float = 0.5
    lam: float = 0.95
    adv_rmse: float = 0.0
    baseline: Literal["shrinkage", "group_mean"] = "shrinkage"
    scale: Literal["running", "group_std"] = "running"
    step_only: bool = False
    shuffled: bool = False
    dynamic_sampling: ClassVar[bool] = True
    max_uniform_share: ClassVar[float] = 0.5  # see `sets.thinned`

    @property
    def needs_values(self) -> bool:
        """Whether sets must carry values: not for alpha 0 over the group's mean."""
        return self.alpha > 0 or self.baseline == "shrinkage"

    def trains_on(self, credit_set: CreditSet) -> bool:
        """Returns whether a set has an advantage: not one of equal rewards without a critic's say in it."""
        if self.step_only and not self.alpha:  # drift took the steps, and there is nothing else
            return False
        if credit_set.kind == "single":
            return self.baseline == "shrinkage"
        return credit_set.kind == "mixed" or self.needs_values

    def initial_state(self) -> dict[str, float]:
        """Returns the running scales before the first update; JSON numbers, kept in checkpoints."""
        return {"group_square": 0.0, "step_square": 0.0, "weight": 0.0}

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        sets = with_values_of_others(sets) if self.shuffled else sets
        sigma_group, sigma_step = (self._sigma(state, part) for part in ("group", "step"))
        scale_group, scale_step = (max(sigma, _MIN_SCALE) for sigma in (sigma_group, sigma_step))
        parts = [(s, self._group(s), self._steps(s)) for s in sets]
        advantages = []
        for s, group, steps in parts:
            scaled = np.zeros_like(group) if self.step_only else self._scaled(s, group, scale_group)
            for of_rollout, step, signs in zip(broadcast(scaled, s), steps, s.signs, strict=True):
                advantages.append(of_rollout + self.alpha * self._bounded(s, step, signs, scale_step))
        metrics = set_metrics(sets) | self._metrics(parts, scale_step)
        metrics |= {"alpha": self.alpha, "adv_rmse": self.adv_rmse}
        metrics |= {"sigma/group": sigma_group, "sigma/step": sigma_step}
        return advantages, metrics, self._next_state(state, parts)

    def _group(self, s: CreditSet) -> np.ndarray:
        """Returns [G] A_grp = R - b + (P - leave-one-out mean of P), or R + P less its mean.

        The shaping term is 0 in a set of one; with the set's own P as its mean it would be a constant. Over
        the set's mean a set of equal rewards has no group part: decoupled clip does not train on it, and
        the tiny deviation of shaping alone would be scaled up to that of success and failure.
        """
        shaping = s.shaping_or_zero
        if self.baseline == "group_mean":
            total = s.rewards + shaping
            return total - total.mean() if s.kind == "mixed" else np.zeros(len(total))
        baseline = shrinkage_baseline(s.rewards, np.array([v[0] for v in s.known_values]))
        centred = shaping - leave_one_out_mean(shaping) if len(shaping) > 1 else np.zeros(1)
        return s.rewards - baseline + centred

    def _scaled(self, s: CreditSet, group: np.ndarray, scale: float) -> np.ndarray:
        """Returns [G] group advantages, scaled; equal rewards have no standard deviation, so by `scale`."""
        if self.scale == "group_std" and s.kind == "mixed":
            return group / ((s.rewards + s.shaping_or_zero).std(ddof=1) + 1e-6)
        return group / scale

    def _bounded(self, s: CreditSet, step: np.ndarray, signs: np.ndarray, scale: float) -> np.ndarray:
        """Returns [T_i] step advantages, scaled, clipped and gated."""
        step = np.clip(step / scale, -_STEP_CLIP, _STEP_CLIP)
        return step * all_wrong_gate(step, signs) if s.kind == "all_wrong" else step

    def _steps(self, s: CreditSet) -> list[np.ndarray]:
        """Returns G arrays [T_i]: step advantages, zeros where no critic is needed."""
        if self.alpha == 0 and s.values is None:
            return [np.zeros(steps) for steps in s.num_steps]
        lam = 0.0 if s.kind == "all_wrong" else self.lam
        part = partial(step_part, gamma=1.0, lam=lam, adv_rmse=self.adv_rmse)
        return list(map(part, s.rewards, s.known_values))

    def _sigma(self, state: dict[str, float], part: str) -> float:
        """Returns the root mean square over earlier updates, 1 before the first."""
        return math.sqrt(state[f"{part}_square"] / state["weight"]) if state["weight"] else 1.0

    def _next_state(self, state: dict[str, float], parts: list[_Parts]) -> dict[str, float]:
        """Returns the state with this update's squares in it; an empty update changes nothing."""
        if not parts:
            return dict(state)
        fresh = {
            "group_square": rms(np.concatenate([group for _, group, _ in parts])) ** 2,
            "step_square": rms(np.concatenate([a for _, _, steps in parts for a in steps])) ** 2,
            "weight": 1.0,
        }
        return {k: _SCALE_DECAY * state[k] + (1 - _SCALE_DECAY) * fresh[k] for k in fresh}

    def _metrics(self, parts: list[_Parts], scale: float) -> dict[str, float]:
        """Returns the size of each part by kind of set, and the share of step advantages at the clip."""
        metrics: dict[str, float] = {}
        for kind in sorted({s.kind for s, _, _ in parts}):
            chosen = [(group, steps) for s, group, steps in parts if s.kind == kind]
            step = np.concatenate([a for _, steps in chosen for a in steps])
            clipped = np.abs(step) >= _STEP_CLIP * scale
            metrics |= {
                f"group/{kind}/rms": rms(np.concatenate([group for group, _ in chosen])),
                f"step/{kind}/mean": float(step.mean()),
                f"step/{kind}/rms": rms(step),
                f"step/{kind}/clipped_share": float(np.mean(clipped)),
            }
        return metrics
