"""When training on stored rollouts ends: what is held out gets no better by the objective's own measure."""

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
"""Looks running without a new best, after which training ends.

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


def mean_probability(trainer: Trainer, rollouts: Sequence[Rollout]) -> float:
    """Returns the mean probability of the rollouts' own tokens, in [0, 1].

    Its logarithm would be ruled by the few tokens that an ever surer policy says otherwise, and falls long
    before success does.
    """
    found = logprobs_of(trainer, rollouts)
    chances = [np.exp(found[r.rollout_id], dtype=np.float64)[np.array(r.loss_mask) == 1] for r in rollouts]
    return float(np.concatenate(chances).mean())


def best_look(looks: Sequence[float]) -> int:
    """Returns the place of the best look, the first of equals."""
    return int(np.argmax(looks))


def is_over(looks: Sequence[float], patience: int = PATIENCE) -> bool:
    """Returns whether the last `patience` looks brought no new best.

    Example:
        >>> is_over([0.2, 0.5, *[0.4] * 5]), is_over([0.2, 0.5, *[0.4] * 6])
        (False, True)
    """
    return len(looks) - 1 - best_look(looks) >= patience
