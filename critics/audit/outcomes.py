"""How good a critic is by outcomes alone, where nobody can go on from a state: of whoever was recorded."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.statistics import MIN_CLUSTERS, ClusterBootstrap, Interval, ratio


def outcome_skills(
    values: Sequence[np.ndarray],
    rewards: Sequence[float],
    clusters: Sequence[str],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Mapping[str, Interval]:
    """Returns Brier skills 1 - sum (V - R)^2 / sum (q - R)^2 over the states of N rollouts, [T_i] each.

    R in [0, 1] is the rollout's own reward, one sample of V at each of its states: its noise is in both sums,
    so skills are below those of an audit by continuations. q is a constant, or a function of the step number,
    both fitted on these very outcomes. Intervals are bootstraps over clusters [N], none below ten of them.
    A state never weighs 1/T: where failures are short that favours them, and the truth would look wrong.
    """
    steps = np.concatenate([np.arange(len(V)) for V in values])
    row = np.repeat(np.arange(len(values)), [len(V) for V in values])
    R, p = np.asarray(rewards, np.float64)[row], np.concatenate(values)
    of_step = np.bincount(steps, weights=R) / np.bincount(steps)
    references = {"constant": np.full(len(R), R.mean()), "position": of_step[steps]}
    boot = ClusterBootstrap(
        np.asarray(clusters)[row], num_resamples=num_resamples, seed=seed, min_clusters=MIN_CLUSTERS
    )
    return {
        f"skill_over_{name}": boot.interval(
            [(p - R) ** 2, (q - R) ** 2], lambda own, other: 1 - ratio(own, other)
        )
        for name, q in references.items()
    }
