"""What labels are worth and what they cost: guided share, noise, duplicates, tokens by source."""

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from critics.labels.named_targets import RULES
from critics.labels.soft_targets import label_counts
from pipeline.ids import digest
from pipeline.types import Label, Rollout, StateRef


def audit_labels(
    labels: Sequence[Label],
    rollouts: Sequence[Rollout],
    continuations_by_state: Mapping[StateRef, Sequence[Rollout]],
) -> dict[str, Any]:
    """Returns the audit of all clusters' labels, JSON-serialisable; None where a share is undefined.

    `base_rate`: successes of all samples. `noise_share` and `noise_share_one_sample`: see `noise_shares`.
    `num_duplicates`: labels that share task, context and tokens with another one, all but the first of each.
    `sources`: what samples came from -> labels with any, samples, and the tokens that were sampled for them:
    continuations cost their own, ungraded ones included, own outcomes those of rollouts that the rollouts
    stage has paid for, the recovery model none.
    """
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    counts = [label_counts(label) for label in labels]
    labelled: dict[str, set[int]] = defaultdict(set)
    for label in labels:
        labelled[label.rollout_id].add(label.step_index)
    states = {state for name, steps in labelled.items() for state in _states(by_id[name], steps)}
    duplicates = len(labels) - len(states)
    continued = [label for label in labels if label.num_continuations]
    own = [label for label in labels if _has_outcome(label)]
    without = sum(not label.num_continuations and not _has_outcome(label) for label in labels)
    noise, one = noise_shares(
        np.array([label.num_success for label in labels]),
        np.array([label.num_continuations for label in labels]),
    )
    sampled = [rollout for samples in continuations_by_state.values() for rollout in samples]
    ended = [by_id[name] for name in {label.rollout_id for label in own}]
    return {
        "num_labels": len(labels),
        "guided_share": _share(sum(label.context == "guided" for label in labels), len(labels)),
        "base_rate": _share(sum(k for k, _ in counts), sum(n for _, n in counts)),
        "noise_share": noise,
        "noise_share_one_sample": one,
        "num_duplicates": duplicates,
        "duplicate_share": _share(duplicates, len(labels)),
        "sources": {
            "continuation": {
                "labels": len(continued),
                "samples": sum(label.num_continuations for label in continued),
                "tokens": sum(rollout.num_trainable_tokens for rollout in sampled),
            },
            "outcome": {
                "labels": len(own),
                "samples": len(own),
                "tokens": sum(rollout.num_trainable_tokens for rollout in ended),
            },
            "no sample": {"labels": without, "samples": 0, "tokens": 0},
        },
    }


def _states(rollout: Rollout, steps: Container[int]) -> Iterator[bytes]:
    """Returns hashes of task, context and tokens of a rollout's states before some steps.

    Each token is read once: hashing every state's own tokens takes the square of a long rollout's length.
    """
    running = hashlib.blake2b(digest(rollout.task_id, rollout.context).encode(), digest_size=16)
    tokens = np.array(rollout.token_ids, dtype=np.int64)
    read, prompt = 0, len(rollout.prompt_token_ids)
    for step in rollout.steps:
        running.update(tokens[read : (read := prompt + step.token_start)].tobytes())
        if step.step_index in steps:
            yield running.digest()


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


def _has_outcome(label: Label) -> bool:
    return label.outcome is not None or label.label_source in RULES


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
