"""What the runs of a comparison came to: the looks at each, and all that it cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.metrics import read_metrics
from pipeline.tables import tasks_from
from stages.wiring.arm_costs import FREE, cost_of, refresh_costs, rows_of, sampled_by_row
from stages.wiring.arms import ArmRun, stage_of

OWN_KINDS = ("whole", "sibling")
"""Of rollouts that an actor is trained on; continuations tell it values."""


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
        return float(sum(map(self.learnable, self.upstream)) + self.own[:iteration].sum())

    def learnable(self, stage: str) -> float:
        """Returns the rollouts of a stage that the policy could learn from."""
        if stage == "actor":
            return float(self.own.sum())
        read = () if self.starts_from_sft else stage_of("stored").inputs(self.run.config)
        return float(self.upstream[stage][0]) if stage in ("rollouts", "labels") and stage in read else 0.0


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
