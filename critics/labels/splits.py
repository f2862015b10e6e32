"""Which clusters the critic is fitted, validated and calibrated on; those that validate calibrate as well."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Protocol

from pipeline.errors import ArtifactError
from pipeline.ids import digest
from pipeline.types import Rollout, Task

Part = Literal["fit", "validate", "calibrate"]


class Shares(Protocol):
    """How large the parts are; `stages.settings.Critic` is one."""

    @property
    def fit_share(self) -> float: ...  # noqa: D102
    @property
    def validate_share(self) -> float: ...  # noqa: D102


def parts_of(
    rollouts: Collection[Rollout], tasks: Mapping[str, Task], shares: Shares, *, seed: int
) -> dict[str, Part]:
    """Returns rollout_id -> part of all rollouts of clusters with a graded one; a cluster is in one part.

    Whoever labels, fits or judges on the same rollouts finds the same parts.

    Args:
        rollouts: of the rollouts stage.
        tasks: by id.
        shares: of clusters; those that are left do nothing but calibrate.
        seed: of the split.

    Raises:
        ArtifactError: fewer than 3 clusters.
    """
    cluster_of = {r.rollout_id: tasks[r.task_id].cluster for r in rollouts}
    graded = {cluster_of[r.rollout_id] for r in rollouts if r.reward is not None and r.steps}
    part_of = split_clusters(
        graded, fit_share=shares.fit_share, validate_share=shares.validate_share, seed=seed
    )
    return {name: part_of[cluster] for name, cluster in cluster_of.items() if cluster in part_of}


def split_clusters(
    clusters: Iterable[str], *, fit_share: float, validate_share: float, seed: int
) -> dict[str, Part]:
    """Returns cluster -> part: clusters in hash order, cut at the shares, at least one in each part.

    Cutting the sorted hashes (not thresholding them) keeps the shares right with few clusters, where a
    part could else be empty.

    Raises:
        ArtifactError: fewer than 3 clusters.
        ValueError: shares that leave nothing to calibrate on.
    """
    ordered = sorted(set(clusters), key=lambda cluster: digest("critic split", seed, cluster))
    if len(ordered) < 3:
        raise ArtifactError(
            f"the graded rollouts are of {len(ordered)} clusters ({', '.join(ordered) or 'none'}); a "
            "critic is fitted on some, and others validate and calibrate it, so 3 or more are needed. Next: "
            "tasks of more clusters (section tasks) or more rollouts (rollouts.num_tasks)"
        )
    if fit_share <= 0 or validate_share <= 0 or fit_share + validate_share >= 1:
        raise ValueError(
            f"fit {fit_share} + validate {validate_share} must be positive and sum to less than 1"
        )
    num_validate = max(1, round(len(ordered) * validate_share))
    num_calibrate = max(1, round(len(ordered) * (1 - fit_share - validate_share)))
    while num_validate + num_calibrate > len(ordered) - 1:  # fit keeps at least one
        if num_validate >= num_calibrate:
            num_validate -= 1
        else:
            num_calibrate -= 1
    num_fit = len(ordered) - num_validate - num_calibrate
    numbers: dict[Part, int] = {"fit": num_fit, "validate": num_validate, "calibrate": num_calibrate}
    parts = [part for part, number in numbers.items() for _ in range(number)]
    return dict(zip(ordered, parts, strict=True))
