"""Which clusters the critic is fitted, validated and calibrated on; those that validate calibrate as well."""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from pipeline.errors import ArtifactError
from pipeline.ids import digest
from pipeline.types import Rollout, Task

Part = Literal["fit", "validate", "calibrate"]


def parts_of(
    rollouts: Collection[Rollout],
    tasks: Mapping[str, Task],
    *,
    fit_share: float,
    validate_share: float,
    seed: int,
) -> dict[str, Part]:
    """Returns rollout_id -> part of all rollouts of clusters with a graded one; see `split_clusters`.

    Whoever labels, fits or judges on the same rollouts finds the same parts.
    """
    cluster_of = {r.rollout_id: tasks[r.task_id].cluster for r in rollouts}
    graded = {cluster_of[r.rollout_id] for r in rollouts if r.reward is not None and r.steps}
    part_of = split_clusters(graded, fit_share=fit_share, validate_share=validate_share, seed=seed)
    return {name: part_of[cluster] for name, cluster in cluster_of.items() if cluster in part_of}


def split_clusters(
    clusters: Iterable[str], *, fit_share: float, validate_share: float, seed: int
) -> dict[str, Part]:
    """Returns cluster -> part: clusters in hash order, cut at the shares, at least one in each part.

    Shares are positive and leave some to calibrate on. Cutting the sorted hashes (not thresholding them)
    keeps them right with few clusters. Raises ArtifactError for fewer than 3 clusters.
    """
    ordered = sorted(set(clusters), key=lambda cluster: digest("critic split", seed, cluster))
    if len(ordered) < 3:
        raise ArtifactError(
            f"the graded rollouts are of {len(ordered)} clusters ({', '.join(ordered) or 'none'}); a "
            "critic is fitted on some, and others validate and calibrate it, so 3 or more are needed. Next: "
            "tasks of more clusters (section tasks) or more rollouts (rollouts.num_tasks)"
        )
    calibrate_share = 1 - fit_share - validate_share
    num_calibrate = min(max(1, round(len(ordered) * calibrate_share)), len(ordered) - 2)
    num_validate = min(max(1, round(len(ordered) * validate_share)), len(ordered) - num_calibrate - 1)
    num_fit = len(ordered) - num_validate - num_calibrate
    numbers: dict[Part, int] = {"fit": num_fit, "validate": num_validate, "calibrate": num_calibrate}
    parts = [part for part, number in numbers.items() for _ in range(number)]
    return dict(zip(ordered, parts, strict=True))
