"""Sibling steps: several next steps from one state, each judged by fresh continuations of its own.

Credit compares steps that could have been taken at the same place, so this is the question a step critic is
for. A step that ends the episode is no sibling: there V is the verifier's word and the critic is not asked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from pipeline.statistics import (
    APART,
    MIN_CLUSTERS,
    ClusterBootstrap,
    Interval,
    cluster_codes,
    standard_errors_apart,
)
from pipeline.steps import joined
from pipeline.types import Rollout

MAX_REFERENCE = 8
"""Continuations that the Monte-Carlo reference may look at."""
OfSet = tuple[str, float, float]
"""A set's cluster, and two numbers."""


def reference_size(K: np.ndarray) -> int:
    """Returns how many of each state's continuations a Monte-Carlo reference looks at; the rest judge it.

    At most half of what most states have, and 0 where fewer than 2 would be left to judge by.
    """
    most = int(np.median(K)) if len(K) else 0
    return max(0, min(MAX_REFERENCE, most // 2, most - 2))


@dataclass(frozen=True, slots=True)
class Siblings:
    """States right after sibling steps, one entry each in every array [N]."""

    set_id: np.ndarray  # which state they follow; sets of one are left out of every measure
    cluster: np.ndarray  # what is resampled
    p: np.ndarray  # calibrated value
    k: np.ndarray  # sum of its own fresh continuations' rewards
    K: np.ndarray  # continuations that were graded, >= 2
    squares: np.ndarray  # sum of squared rewards, k where these are 0 or 1

    @classmethod
    def of(cls, rows: Sequence[tuple[str, str, float, float, int, float]]) -> Self:
        """Returns the arrays of rows (set, cluster, p, k, K, squares)."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * 6
        kinds: list[type] = [str, str, float, float, np.int64, float]
        return cls(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))

    @property
    def reference_size(self) -> int:
        """Continuations that the reference looks at; 0 of graded rewards, as it draws from counts."""
        return reference_size(self.K) if (self.squares == self.k).all() else 0

    def sets(self) -> list[np.ndarray]:
        """Returns the rows of each set of two or more, in order of first appearance."""
        codes, number = cluster_codes(self.set_id)
        ends = np.cumsum(np.bincount(codes, minlength=number))[:-1]
        return [part for part in np.split(np.argsort(codes, kind="stable"), ends) if len(part) > 1]


def measured_siblings(
    rollouts: Iterable[Rollout],
    parents: Mapping[str, Rollout],
    values_of: Callable[[Sequence[Rollout]], list[np.ndarray]],
    clusters: Mapping[str, str],
) -> Siblings:
    """Returns the states after siblings with at least two graded continuations: value, and their rewards.

    `parents` are the whole rollouts by id that the sets' states lie in, `clusters` those of tasks by id.
    """
    siblings: dict[str, Rollout] = {}
    rewards: dict[str, list[float]] = {}
    for r in rollouts:
        if r.kind == "sibling" and r.parent_rollout_ids[0] in parents:
            siblings[r.rollout_id] = r
        elif r.kind == "after_sibling" and r.reward is not None:
            rewards.setdefault(r.parent_rollout_ids[0], []).append(r.reward)
    counted = [(s, got) for s in siblings.values() if len(got := rewards.get(s.rollout_id, [])) >= 2]
    values = values_of([joined(parents[s.parent_rollout_ids[0]], s) for s, _ in counted])
    rows = [
        (
            *(s.parent_rollout_ids[0], clusters[s.task_id], float(v[s.start_step_index + 1])),
            *(sum(got), len(got), sum(x * x for x in got)),
        )
        for (s, got), v in zip(counted, values, strict=True)
    ]
    return Siblings.of(rows)


def top_share(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Returns the chance that the highest score is at the highest truth, and the chance of a blind choice.

    Ties of scores are broken at random, and any of tied truths counts.

    Example:
        >>> top_share(np.array([0.2, 0.9, 0.9]), np.array([0.0, 1.0, 0.5]))
        (0.5, 0.3333333333333333)
    """
    best = truth == truth.max()
    chosen = scores == scores.max()
    return float(best[chosen].mean()), float(best.mean())


def sibling_measures(
    siblings: Siblings, *, num_resamples: int = 1000, seed: int = 0
) -> tuple[dict[str, Interval], int]:
    """Returns the measures of sibling sets, NaN where undefined, and how many sets tell anything.

    Top1 is taken over sets whose measured values differ, pairs are more than two standard errors apart. No
    bounds with fewer than `MIN_CLUSTERS` clusters; `critics.report.sections` says how to read each.
    """
    rng = np.random.default_rng([seed, 8])
    V = siblings.k / np.maximum(siblings.K, 1)
    size = siblings.reference_size
    tops: list[OfSet] = []
    references: list[OfSet] = []
    ordered: list[OfSet] = []
    for rows in siblings.sets():
        cluster = str(siblings.cluster[rows[0]])
        p, truth, k, K = siblings.p[rows], V[rows], siblings.k[rows], siblings.K[rows]
        if truth.max() > truth.min():
            tops.append((cluster, *top_share(p, truth)))
        if size and (2 * size <= K).all():
            seen = rng.hypergeometric(k.astype(np.int64), K - k.astype(np.int64), size)
            rest = (k - seen) / (K - size)
            if rest.max() > rest.min():
                references.append((cluster, *top_share(seen.astype(float), rest)))
        i, j = np.triu_indices(len(rows), 1)
        one, other = ((k[at], K[at], siblings.squares[rows][at]) for at in (i, j))
        clear = np.abs(standard_errors_apart(one, other)) > APART
        rightly = (p[i] - p[j]) * (truth[i] - truth[j]) > 0
        ordered.append((cluster, float(rightly[clear].sum()), float(clear.sum())))

    def drawn(found: list[OfSet]) -> tuple[ClusterBootstrap, np.ndarray, np.ndarray]:
        boot = ClusterBootstrap([cluster for cluster, _, _ in found], num_resamples, seed, MIN_CLUSTERS)
        x, y = np.array([numbers for _, *numbers in found], np.float64).reshape(-1, 2).T
        return boot, x, y

    named, ours, blind = drawn(tops)
    sampled, theirs, by_chance = drawn(references)
    paired, right, clear_pairs = drawn(ordered)
    return {
        "sibling_top1": named.mean(ours),
        "sibling_chance": named.mean(blind),
        "sibling_excess": named.mean(ours - blind),
        "sibling_reference": sampled.mean(theirs),
        "sibling_reference_excess": sampled.mean(theirs - by_chance),
        "sibling_pairs": paired.ratio(right, clear_pairs),
    }, len(tops)
