"""Baseline sets: rollouts of one context and one round, the only ones whose rewards may be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.types import Rollout, VerifierStatus

SetKind = Literal["mixed", "all_right", "all_wrong", "single"]

_SIGNS: dict[VerifierStatus, int] = {"ok": 1, "wrong": -1, "unknown": 0}


@dataclass(frozen=True, slots=True)
class CreditSet:
    """One baseline set as credit sees it: G rollouts, rollout i of T_i steps.

    Attributes:
        rewards: [G] raw rewards R, never shaped.
        num_tokens: G arrays [T_i]: trainable tokens of each step.
        signs: G arrays [T_i]: the verifier on each step, +1 ok, -1 wrong, 0 unknown.
        values: G arrays [T_i]: calibrated V(s_i) before each step; None without a critic.
        shaping: [G] P added to the reward for the group's advantage only; the critic never sees it.

    Example:
        >>> CreditSet(np.array([1.0, 0.0]), [np.array([7]), np.array([9])], [np.zeros(1)] * 2).kind
        'mixed'
    """

    rewards: np.ndarray
    num_tokens: Sequence[np.ndarray]
    signs: Sequence[np.ndarray]
    values: Sequence[np.ndarray] | None = None
    shaping: np.ndarray | None = None

    def __post_init__(self) -> None:
        size = len(self.rewards)
        per_rollout = {"num_tokens": self.num_tokens, "signs": self.signs, "values": self.values}
        if size == 0 or not np.isfinite(self.rewards).all():
            raise ValueError(f"rewards = {self.rewards}; a set has at least 1 rollout, all of them graded")
        for name, arrays in per_rollout.items():
            if arrays is not None and [len(a) for a in arrays] != [len(a) for a in self.num_tokens]:
                raise ValueError(f"{name} has steps {[len(a) for a in arrays]}; want {self.num_steps}")
        if len(self.num_tokens) != size or min(self.num_steps) < 1:
            raise ValueError(f"{size} rewards but steps {self.num_steps}; want one count >= 1 per rollout")
        if self.shaping is not None and len(self.shaping) != size:
            raise ValueError(f"shaping has {len(self.shaping)} entries; want {size}")

    @property
    def num_steps(self) -> list[int]:
        """[G] T_i."""
        return [len(steps) for steps in self.num_tokens]

    @property
    def kind(self) -> SetKind:
        """What the raw rewards look like; a graded set of equal rewards is right from .5 on."""
        if len(self.rewards) == 1:
            return "single"
        if self.rewards.max() > self.rewards.min():
            return "mixed"
        return "all_right" if self.rewards[0] >= 0.5 else "all_wrong"

    @property
    def shaping_or_zero(self) -> np.ndarray:
        """[G] P, zeros without shaping."""
        return np.zeros(len(self.rewards)) if self.shaping is None else np.asarray(self.shaping, np.float64)


def baseline_sets(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """Returns the graded rollouts as sets of equal group, attempt and prompt tokens, in order of appearance.

    Attempts are kept apart even when their prompts are equal: a later round of one context exists *because*
    of earlier outcomes, and sharing a baseline with it biases the gradient (DESIGN.md, "Credit"). A rollout
    that could not be graded (null reward) or sampled nothing leaves every estimate: it is in no set.
    """
    sets: dict[tuple[str, int, tuple[int, ...]], list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.reward is not None and rollout.steps:
            key = (rollout.group_id, rollout.attempt, tuple(rollout.prompt_token_ids))
            sets.setdefault(key, []).append(rollout)
    return list(sets.values())


def credit_set(
    rollouts: Sequence[Rollout],
    *,
    values: Mapping[str, np.ndarray] | None = None,
    shaping: Mapping[str, float] | None = None,
) -> CreditSet:
    """Returns one baseline set in the form that credit takes.

    Args:
        rollouts: the members, all graded, as `baseline_sets` gives them.
        values: rollout_id -> [T] calibrated values before each step; None without a critic.
        shaping: rollout_id -> P; None is no shaping.

    Raises:
        ValueError: a rollout is not graded or has no values.
    """
    ungraded = [rollout.rollout_id for rollout in rollouts if rollout.reward is None]
    if ungraded:
        raise ValueError(
            f"rollout {ungraded[0]} has no reward; leave ungraded rollouts out (`baseline_sets`)"
        )
    if values is not None and (missing := [r.rollout_id for r in rollouts if r.rollout_id not in values]):
        raise ValueError(f"no critic values for rollout {missing[0]} ({len(missing)} of {len(rollouts)})")
    return CreditSet(
        rewards=np.array([rollout.reward for rollout in rollouts], dtype=np.float64),
        num_tokens=[np.array([s.token_end - s.token_start for s in r.steps]) for r in rollouts],
        signs=[np.array([_SIGNS[s.verifier_status] for s in r.steps]) for r in rollouts],
        values=None if values is None else [np.asarray(values[r.rollout_id], np.float64) for r in rollouts],
        shaping=None if shaping is None else np.array([shaping[r.rollout_id] for r in rollouts], np.float64),
    )
