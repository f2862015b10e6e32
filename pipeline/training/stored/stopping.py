"""When training on stored rollouts ends and which weights it keeps, by looks at what is held out."""

from collections.abc import Iterable, Sequence

import numpy as np

from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import digest
from pipeline.training import Trainer
from pipeline.training.policy_update import logprobs_of
from pipeline.types import Rollout

HELD_OUT_SHARE = 0.1
"""Of the clusters with a success, in hash order (start value)."""
PATIENCE = 6
"""Looks running that are not kept, after which training ends.

Evidence: docs/decisions/0049-a-stored-phase.md, three seeds of a tiny model."""


def held_out_clusters(clusters: Iterable[str], seed: int) -> set[str]:
    """Returns the clusters that are only looked at: a share of those that hold successes, by hash.

    Raises ArtifactError, code QUALITY, for fewer than two: one is to be learnt from, another judges.
    """
    ordered = sorted(set(clusters), key=lambda cluster: digest("stored split", seed, cluster))
    if len(ordered) < 2:
        raise ArtifactError(
            f"successes to imitate are of {len(ordered)} clusters ({', '.join(ordered) or 'none'}); some are "
            "learnt from and another says when to stop, so 2 are needed. Next: more rollouts "
            "(rollouts.num_tasks, rollouts.chain), or stored.objective.kind=none",
            code=ExitCode.QUALITY,
        )
    return set(ordered[: max(1, round(HELD_OUT_SHARE * len(ordered)))])


def probabilities(trainer: Trainer, rollouts: Sequence[Rollout]) -> list[float]:
    """Returns each rollout's mean probability of its own tokens, in [0, 1].

    Its logarithm would be ruled by the few tokens that an ever surer policy says otherwise, and falls long
    before success does.
    """
    found = logprobs_of(trainer, rollouts)
    chances = (np.exp(found[r.rollout_id], dtype=np.float64)[np.array(r.loss_mask) == 1] for r in rollouts)
    return [float(each.mean()) for each in chances]


def best_look(looks: Sequence[float]) -> int:
    """Returns the place of the best look, the first of equals."""
    return int(np.argmax(looks))


def latest_as_good(looks: Sequence[Sequence[float]]) -> int:
    """Returns the place of the last look that is within a standard error of the best.

    Success goes on rising where held-out probability has levelled off, and on a level the best look is
    noise: decision 0082.

    Args:
        looks: [looks, rollouts], a number of each held-out rollout; their mean says which look is best. The
            error is of a look's mean difference to the best one, rollout by rollout.

    Example:
        >>> latest_as_good([[0.2, 0.4], [0.5, 0.6], [0.6, 0.4], [0.2, 0.3]])
        2
    """
    numbers = np.asarray(looks, np.float64)
    behind = numbers[best_look(numbers.mean(1).tolist())] - numbers
    error = behind.std(1) / np.sqrt(numbers.shape[1])
    return int(np.flatnonzero(behind.mean(1) <= error)[-1])


def is_over(num_looks: int, kept: int, patience: int = PATIENCE) -> bool:
    """Returns whether `patience` looks have come since the one that is kept."""
    return num_looks - 1 - kept >= patience
