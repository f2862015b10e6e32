"""What labels are worth and what they cost: guided share, noise, duplicates, tokens by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from critics.labels.named_targets import RULES
from critics.labels.soft_targets import label_counts
from pipeline.ids import digest
from pipeline.steps import state_tokens
from pipeline.types import Label, Rollout, StateRef


def audit_labels(
    labels: Sequence[Label],
    rollouts: Sequence[Rollout],
    continuations_by_state: Mapping[StateRef, Sequence[Rollout]],
) -> dict[str, Any]:
    """Returns the audit of labels, JSON-serialisable; None where a share is undefined.

    `guided_share`: of the labels. `base_rate`: successes of all samples. `noise_share` and
    `noise_share_one_sample`: see `noise_shares`. `num_duplicates`, `duplicate_share`: labels that share
    task, context and tokens with another one, all but the first of each: one state, more than once.
    `sources`: what samples came from -> labels with any, samples, and the tokens that were sampled for them:
    continuations cost their own, own outcomes those of rollouts that the rollouts stage has paid for, the
    recovery model none.

    Args:
        labels: of all clusters; those that only validate or calibrate are among them.
        rollouts: that they lie in.
        continuations_by_state: everything that was sampled for them, ungraded ones included.
    """
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    counts = [label_counts(label) for label in labels]
    k, n = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    states = Counter(
        digest(rollout.task_id, label.context, state_tokens(rollout, label.step_index))
        for label in labels
        for rollout in [by_id[label.rollout_id]]
    )
    duplicates = len(labels) - len(states)
    continued = [label for label in labels if label.num_continuations]
    own = [label for label in labels if has_outcome(label)]
    rest = [label for label in labels if not label.num_continuations and not has_outcome(label)]
    noise, one = noise_shares(
        np.array([label.num_success for label in labels]),
        np.array([label.num_continuations for label in labels]),
    )
    return {
        "num_labels": len(labels),
        "guided_share": _share(sum(label.context == "guided" for label in labels), len(labels)),
        "base_rate": _share(k, n),
        "noise_share": noise,
        "noise_share_one_sample": one,
        "num_duplicates": duplicates,
        "duplicate_share": _share(duplicates, len(labels)),
        "sources": {
            "continuation": {
                "labels": len(continued),
                "samples": sum(label.num_continuations for label in continued),
                "tokens": sum(
                    r.num_trainable_tokens for own_ in continuations_by_state.values() for r in own_
                ),
            },
            "outcome": {
                "labels": len(own),
                "samples": len(own),
                "tokens": sum(
                    by_id[name].num_trainable_tokens for name in {label.rollout_id for label in own}
                ),
            },
            "no sample": {"labels": len(rest), "samples": 0, "tokens": 0},
        },
    }


def has_outcome(label: Label) -> bool:
    """Returns whether the outcome of the label's own rollout entered it."""
    return label.outcome is not None or label.label_source in RULES


def noise_shares(k: np.ndarray, n: np.ndarray) -> tuple[float | None, float | None]:
    """Returns which share of the variance of k/n is chance, and which it would be with one sample a state.

    Of states with n >= 2, with Vhat = k/n and v = Vhat (1 - Vhat)/(n - 1), unbiased for the variance of Vhat:

        share = mean v / Var(Vhat);  one sample: mean n v / (m (1 - m)),  m = mean Vhat

    None with fewer than two such states, or if they do not vary. Graded rewards vary less than coins, so of
    them both shares are upper bounds.

    Example:
        >>> noise_shares(np.array([0, 4, 2, 2]), np.array([4, 4, 4, 4]))
        (0.3333333333333333, 0.6666666666666666)
    """
    k, n = k[n >= 2], n[n >= 2]
    if len(k) < 2:
        return None, None
    V = k / n
    v = V * (1 - V) / (n - 1)
    m = V.mean()
    return _share(float(v.mean()), float(V.var())), _share(float((n * v).mean()), float(m * (1 - m)))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
