"""Baseline sets: rollouts of one context and one round, the only ones with comparable rewards."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipeline.types import Rollout, VerifierStatus

SetKind = Literal["mixed", "all_right", "all_wrong", "single"]
UNIFORM: tuple[SetKind, ...] = ("all_right", "all_wrong")

_SIGNS: dict[VerifierStatus, int] = {"ok": 1, "wrong": -1, "unknown": 0}


@dataclass(frozen=True, slots=True)
class CreditSet:
    """One baseline set as credit sees it: G rollouts, rollout i of T_i steps.

    Attributes:
        rewards: [G] raw rewards R, never shaped.
        signs: G arrays [T_i]: the verifier on each step, +1 ok, -1 wrong, 0 unknown.
        values: G arrays [T_i]: calibrated V(s_i) before each step; None without a critic.
        shaping: [G] P added to the reward for the group's advantage only; the critic never sees it.
        parents: [G] place of the rollout that a tree's branch continues, of any other its own.
        starts: [G] the step that each begins with, 0 but for a branch.
    """

    rewards: np.ndarray
    signs: Sequence[np.ndarray]
    values: Sequence[np.ndarray] | None = None
    shaping: np.ndarray | None = None
    parents: np.ndarray | None = None
    starts: Sequence[int] = ()

    def __post_init__(self) -> None:
        if len(self.rewards) != len(self.signs):
            raise ValueError(f"rewards of {len(self.rewards)} rollouts; signs are of {len(self.signs)}")
        if np.isnan(self.rewards).any():
            raise ValueError("a rollout has no reward; leave ungraded ones out, as `baseline_sets` does")
        if self.values is not None and [len(v) for v in self.values] != self.num_steps:
            raise ValueError(f"values has steps {[len(v) for v in self.values]}; want {self.num_steps}")

    @property
    def num_steps(self) -> list[int]:
        """[G] T_i."""
        return [len(signs) for signs in self.signs]

    @property
    def kind(self) -> SetKind:
        """What the raw rewards look like: mixed if any two differ; equal ones are right from .5 on."""
        if len(self.rewards) == 1:
            return "single"
        least, most = self.rewards.min(), self.rewards.max()
        if most > least:
            return "mixed"
        return "all_right" if least >= 0.5 else "all_wrong"

    @property
    def shaping_or_zero(self) -> np.ndarray:
        """[G] P, zeros without shaping."""
        return np.zeros(len(self.rewards)) if self.shaping is None else self.shaping

    @property
    def known_values(self) -> Sequence[np.ndarray]:
        """G arrays [T_i] V, for a mode that cannot do without."""
        if self.values is None:
            raise ValueError("credit needs values in every set; run the critic, or use decoupled_clip")
        return self.values


def thinned(kinds: Sequence[SetKind], order: Sequence[int], *, max_uniform_share: float) -> np.ndarray:
    """Returns [S] how many sets each stands for: 0 where it is dropped, 1 or more where it is kept.

    Of U sets of equal rewards the n first in a random order [S], drawn without a look at the sets, are kept
    and stand for U/n each, so that every set counts 1 in expectation. Dropping by kind instead, failures for
    example, selects on outcomes, which biases the gradient wherever such sets have an advantage.

    Uniform sets make up at most `max_uniform_share` in [0, 1] of the kept ones; one is always kept, and all
    are if there is nothing else.

    Source: Horvitz and Thompson (1952).

    Example:
        >>> kinds = ["mixed", "all_wrong", "all_wrong", "mixed", "all_right", "all_wrong"]
        >>> thinned(kinds, [8, 1, 5, 2, 3, 9], max_uniform_share=0.5)
        array([1., 2., 0., 1., 2., 0.])
    """
    uniform = np.flatnonzero(np.isin(kinds, UNIFORM))
    others = len(kinds) - len(uniform)
    weights = np.ones(len(kinds))
    if others and len(uniform) and max_uniform_share < 1.0:
        room = max(1, math.floor(max_uniform_share / (1.0 - max_uniform_share) * others + 1e-9))
        first = sorted(uniform, key=lambda i: order[i])[:room]
        weights[uniform] = 0.0
        weights[first] = len(uniform) / len(first)
    return weights


def with_values_of_others(sets: Sequence[CreditSet]) -> list[CreditSet]:
    """Returns the sets with the values of each rollout from another one of as many steps.

    Listed in order of the sets, each takes those of the rollout half a list further on, which is of another
    set as far as there are any. One that is alone with its length gets the mean value of all at every step.
    So values keep their distribution and tell nothing of the rollout but its length.

    Example:
        >>> signs = [np.zeros(1), np.zeros(1)]
        >>> first, second = (CreditSet(np.ones(2), signs, [np.array([v]), np.array([v])]) for v in (0.1, 0.9))
        >>> [float(v[0]) for s in with_values_of_others([first, second]) for v in s.values]
        [0.9, 0.9, 0.1, 0.1]
        >>> two = CreditSet(np.ones(2), signs, [np.array([0.1]), np.array([0.9])])
        >>> [float(v[0]) for s in with_values_of_others([two]) for v in s.values]
        [0.9, 0.1]
    """
    values = [own for s in sets for own in s.values or ()]
    taken = [np.full(len(own), np.concatenate(values).mean()) for own in values]
    for length in {len(own) for own in values}:
        places = [i for i, own in enumerate(values) if len(own) == length]
        for place, i in enumerate(places if len(places) > 1 else ()):
            taken[i] = values[places[(place + len(places) // 2) % len(places)]]
    rest = iter(taken)
    return [replace(s, values=[next(rest) for _ in s.values or ()]) for s in sets]


def overlong_penalty(num_tokens: np.ndarray, max_tokens: np.ndarray, *, factor: float) -> np.ndarray:
    """Returns [N] shaping P = factor * clip((L_max - buffer - len) / buffer, -1, 0), buffer = L_max // 5.

    Lengths and budgets L_max are [N]. Published with rewards of +-1 and factor 1; ours are 0 and 1, so
    decoupled clip's factor is one half. The buffer is a fifth of the budget, as published (4,096 of 20,480).

    Source: Yu et al., arXiv:2503.14476, eq. 13.

    Example:
        >>> overlong_penalty(np.array([70, 80, 90, 100]), np.full(4, 100), factor=0.5)
        array([ 0.  ,  0.  , -0.25, -0.5 ])
    """
    buffers = np.maximum(max_tokens // 5, 1)
    return factor * np.clip((max_tokens - buffers - num_tokens) / buffers, -1.0, 0.0)


def baseline_sets(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """Returns the graded rollouts as sets of equal group, attempt and prompt tokens, in order of appearance.

    Attempts are kept apart even when their prompts are equal: a later round of one context exists *because*
    of earlier outcomes, and sharing a baseline with it biases the gradient (DESIGN.md, "Credit"). A rollout
    that could not be graded (null reward) or sampled nothing leaves every estimate: it is in no set. A branch
    of a tree (kind `sibling`) is in the set of the rollout that it continues, which comes before it.
    """
    sets: dict[tuple[str, int, tuple[int, ...]], list[Rollout]] = {}
    of_root: dict[str, tuple[str, int, tuple[int, ...]]] = {}
    for rollout in rollouts:
        if rollout.reward is not None and rollout.steps:
            key = (rollout.group_id, rollout.attempt, tuple(rollout.prompt_token_ids))
            if rollout.kind == "sibling":
                key = of_root[rollout.parent_rollout_ids[0]]
            of_root[rollout.rollout_id] = key
            sets.setdefault(key, []).append(rollout)
    return list(sets.values())


def credit_set(
    rollouts: Sequence[Rollout],
    *,
    values: Mapping[str, np.ndarray] | None = None,
    overlong_factor: float = 0.0,
) -> CreditSet:
    """Returns one of `baseline_sets` as credit takes it, with values [T] by rollout_id."""
    prompt = len(rollouts[0].prompt_token_ids)  # a branch's is longer; the budget counts from here
    lengths = np.array([len(r.token_ids) - prompt for r in rollouts])
    places = {rollout.rollout_id: i for i, rollout in enumerate(rollouts)}
    budgets = np.array([r.max_response_tokens for r in rollouts])
    return CreditSet(
        rewards=np.array([rollout.reward for rollout in rollouts], dtype=np.float64),
        signs=[np.array([_SIGNS[s.verifier_status] for s in r.steps]) for r in rollouts],
        values=None if values is None else [np.asarray(values[r.rollout_id], np.float64) for r in rollouts],
        shaping=overlong_penalty(lengths, budgets, factor=overlong_factor),
        parents=np.array(
            [places[r.parent_rollout_ids[0] if r.kind == "sibling" else r.rollout_id] for r in rollouts]
        ),
        starts=[r.start_step_index for r in rollouts],
    )
