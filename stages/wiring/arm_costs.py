"""What stages of a run cost, read off their tables."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.link import link_stage
from pipeline.artifacts.manifest import read_manifest
from pipeline.errors import ArtifactError
from pipeline.runs import MAIN_CHAIN, refreshes_of
from pipeline.schema import read_parquet

COSTS = ("rollouts", "tokens", "seconds")
"""What a cost is an array [3] of."""
FREE = ("tasks", "sft")
"""Stages before the starting policy is there: all arms begin with it."""


def rows_of(folder: Path, name: str) -> pa.Table | None:
    """Returns a table of a stage, as far as it came; None if it has none."""
    if read_manifest(folder) is not None:
        artifact = Artifact.open(folder.parent, folder.name)
        return artifact.table(name) if name in artifact.tables else None
    shards = [entry for entry in ledger.read(folder)[0].values() if name in entry.files]
    return pa.concat_tables(read_parquet(folder / s.files[name]["path"]) for s in shards) if shards else None


def sampled_by_row(rollouts: pa.Table) -> np.ndarray:
    """Returns [N, 2] of a table of N rollouts: 1, and its sampled tokens; 0 and 0 of a recorded one.

    Feedback that the policy wrote on it itself was sampled too; a server's tokens are another model's.
    """
    masks = rollouts.column("loss_mask").combine_chunks()
    sums = np.concatenate([[0], np.cumsum(masks.flatten().to_numpy(zero_copy_only=False))])
    ends = np.concatenate([[0], np.cumsum(pc.list_value_length(masks).to_numpy(zero_copy_only=False))])
    sampled = pc.not_equal(rollouts.column("kind"), "recorded").to_numpy()
    is_own = pc.equal(rollouts.column("feedback_source"), "self").to_numpy()
    feedback = rollouts.column("feedback_tokens").to_numpy() * is_own
    return np.stack([np.ones(len(masks)), np.diff(sums[ends]) + feedback], axis=1) * sampled[:, None]


def cost_of(folder: Path) -> np.ndarray:
    """Returns what a stage cost [3]; the seconds of one that is not complete are not known, and 0."""
    table, manifest = rows_of(folder, "rollouts"), read_manifest(folder)
    sampled = np.zeros(2) if table is None else sampled_by_row(table).sum(axis=0)
    return np.append(sampled, manifest["wall_seconds"] if manifest else 0.0)


def refresh_costs(run_dir: Path) -> dict[int, np.ndarray]:
    """Returns iterations before a refresh -> its cost; several of one iteration add up.

    Of an actor that is complete those that it names: an earlier one, begun afresh, may have left others.
    Raises ArtifactError if one of them is gone, so that nobody knows what it cost.
    """
    runs, found = refreshes_of(run_dir), defaultdict[int, np.ndarray](lambda: np.zeros(3))
    if read_manifest(run_dir / "actor"):
        named = _refreshes_in(Artifact.open(run_dir, "actor").report)
        if gone := named - {run.relative_to(run_dir).as_posix() for run in runs}:
            raise ArtifactError(
                f"{run_dir} lacks {', '.join(sorted(gone))}, a refresh of its actor's critic: nobody "
                "knows what it cost. Next: put it back, or make the actor again (--fresh)"
            )
        runs = [run for run in runs if run.relative_to(run_dir).as_posix() in named]
    for refresh in runs:
        found[int(refresh.name.split("-")[0])] += _all_of(refresh)
    return dict(found)


def link_with_refreshes(source: Path, target: Path) -> None:
    """Makes a complete stage of one run part of another, with the runs that refreshed its critic."""
    report = Artifact.open(source.parent, source.name).report if source.name == "actor" else {}
    for run in _refreshes_in(report):
        if not (target.parent / run).exists():
            link_stage(source.parent / run, target.parent / run)  # the actor is not complete without
    link_stage(source, target)


def _refreshes_in(report: Mapping[str, Any]) -> set[str]:
    return {*report.get("refreshes", ()), *report.get("refused_refreshes", ())}


def _all_of(run_dir: Path) -> np.ndarray:
    return sum((cost_of(run_dir / stage) for stage in MAIN_CHAIN if stage not in FREE), np.zeros(3))
