"""What the runs of a comparison came to: the looks at each, and all that it cost."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.metrics import read_metrics
from pipeline.cli.runs import MAIN_CHAIN, refreshes_of
from pipeline.schema import read_parquet
from pipeline.tables import tasks_from
from stages.wiring.arms import ArmRun, stage_of

COSTS = ("rollouts", "tokens", "seconds")
"""What a cost is an array [3] of."""
OWN_KINDS = ("whole", "sibling")
"""Of rollouts that an actor is trained on; continuations tell it values."""
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


@dataclass(frozen=True, slots=True)
class Result:
    """One run."""

    run: ArmRun
    start_key: str  # of the stage that made its starting policy; "": there is none
    upstream: dict[str, np.ndarray]  # stage before the actor -> its cost
    by_iteration: np.ndarray  # [I, 3] cost of each iteration of the actor, but for looks
    own: np.ndarray  # [I] of its rollouts those of `OWN_KINDS`
    returns: list[list[float]]  # [I] rewards of its first tries on training tasks
    refreshes: dict[int, np.ndarray]  # iterations before a refresh of the critic -> its cost
    looks: dict[int, list[dict[str, Any]]]  # iterations before a look -> its rows
    clusters: dict[str, str]  # of tasks, by id

    @property
    def starts_from_sft(self) -> bool:
        """Whether the first look is at the starting policy: stored rollouts taught it nothing before."""
        return "stored" not in self.run.chain

    def costs(self, iteration: int) -> np.ndarray:
        """Returns all that was paid [3] before a look; before iteration 0, nothing was."""
        if iteration < 0:
            return np.zeros(3)
        refreshed = [cost for when, cost in self.refreshes.items() if when <= iteration]
        return sum([*self.upstream.values(), *refreshed, *self.by_iteration[:iteration]], np.zeros(3))

    def rollouts_without_values(self, iteration: int) -> float:
        """Returns the rollouts before a look that its policy could learn from, stored ones included."""
        if iteration < 0:
            return 0.0
        read = () if self.starts_from_sft else stage_of("stored").inputs(self.run.config)
        stored = [self.upstream[stage][0] for stage in ("rollouts", "labels") if stage in read]
        return float(sum(stored) + self.own[:iteration].sum())


def result_of(run: ArmRun) -> Result:
    """Reads a run, as far as it came."""
    by_iteration, own, returns = _iterations(run.run_dir / "actor")
    clusters: dict[str, str] = {}
    if read_manifest(run.run_dir / "tasks"):
        table = Artifact.open(run.run_dir, "tasks").table("tasks")
        clusters = {task.task_id: task.cluster for task in tasks_from(table)}
    return Result(
        run,
        (read_manifest(run.run_dir / "sft") or {}).get("stage_key", ""),
        {stage: cost_of(run.run_dir / stage) for stage in run.chain if stage not in (*FREE, "actor")},
        by_iteration,
        own,
        returns,
        refresh_costs(run.run_dir),
        _looks(run.run_dir / "actor"),
        clusters,
    )


def _iterations(actor: Path) -> tuple[np.ndarray, np.ndarray, list[list[float]]]:
    """Returns what each iteration cost [I, 3], its own rollouts [I], and the rewards of its first tries."""
    played, metrics = rows_of(actor, "rollouts"), read_metrics(actor / "metrics.jsonl")
    seconds = {int(line["iteration"]): line["seconds"] for line in metrics if "seconds" in line}
    columns = ["iteration", "kind", "attempt", "guided", "reward"]
    rows = [] if played is None else played.select(columns).to_pylist()
    number = 1 + max([*seconds, *(row["iteration"] for row in rows)], default=-1)
    costs, own, returns = np.zeros((number, 3)), np.zeros(number), [list[float]() for _ in range(number)]
    for iteration, some in seconds.items():
        costs[iteration, 2] = some
    if played is not None:
        np.add.at(costs[:, :2], [row["iteration"] for row in rows], sampled_by_row(played))
    for row in rows:
        own[row["iteration"]] += row["kind"] in OWN_KINDS
        is_first = row["kind"] == "whole" and row["attempt"] == 0 and not row["guided"]
        if is_first and row["reward"] is not None:
            returns[row["iteration"]].append(row["reward"])
    return costs, own, returns


def _looks(actor: Path) -> dict[int, list[dict[str, Any]]]:
    table, looks = rows_of(actor, "looks"), dict[int, list[dict[str, Any]]]()
    for row in [] if table is None else table.to_pylist():
        if row["reward"] is not None:
            looks.setdefault(row["iteration"], []).append(row)
    return dict(sorted(looks.items()))


def refresh_costs(run_dir: Path) -> dict[int, np.ndarray]:
    """Returns iterations before a refresh -> its cost; several of one iteration add up.

    Of an actor that is complete those that it names: an earlier one, begun afresh, may have left others.
    """
    runs, found = refreshes_of(run_dir), defaultdict[int, np.ndarray](lambda: np.zeros(3))
    if read_manifest(run_dir / "actor"):
        report = Artifact.open(run_dir, "actor").report
        named = {*report.get("refreshes", ()), *report.get("refused_refreshes", ())}
        runs = [run for run in runs if run.relative_to(run_dir).as_posix() in named]
    for refresh in runs:
        found[int(refresh.name.split("-")[0])] += _all_of(refresh)
    return dict(found)


def _all_of(run_dir: Path) -> np.ndarray:
    return sum((cost_of(run_dir / stage) for stage in MAIN_CHAIN if stage not in FREE), np.zeros(3))
