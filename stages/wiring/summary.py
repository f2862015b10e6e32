"""What the finished stages of a run come to: what was won, how good the critic is, what it all cost."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.artifacts.artifact import Artifact
from pipeline.errors import ArtifactError
from pipeline.runs import MAIN_CHAIN
from stages.wiring.arm_costs import rows_of, sampled_by_row

MEASURES = {
    "first_try": "first try, temperature 1",
    "greedy": "first try, greedy",
    "with_feedback": "with feedback",
}
CRITIC = {
    "skill_vs_constant": "Brier skill against a constant",
    "skill_vs_task_rate": "Brier skill against the task's success rate",
    "skill_vs_position": "Brier skill against the position alone",
    "ev": "explained variance",
    "ev_within": "explained variance within rollouts",
}
SAMPLING = ("rollouts", "labels", "critic_report", "actor")  # what the method pays for; evaluation is free
REFRESHED = ("rollouts", "labels", "critic_report")  # of these, what a refresh of the critic pays for again
CRITIC_STAGES = ("rollouts", "labels", "critic", "critic_report")


def summarise(
    run_dir: Path, *, with_critic: bool = True, stored_from: Collection[str] = ()
) -> dict[str, Any]:
    """Returns summary.json of a run with a complete chain; an actor trained without a critic needs none.

    `stored_from` are the stages that its stored phase read; nothing without one. Raises ArtifactError if a
    stage is not complete, or if they are of different seeds.
    """
    used = MAIN_CHAIN if with_critic else Artifact.open(run_dir, "actor").manifest["inputs"]
    unread = {name for name in CRITIC_STAGES if name not in {*used, *stored_from}}
    needed = [name for name in MAIN_CHAIN if name not in unread and (name != "stored" or stored_from)]
    artifacts = {name: Artifact.open(run_dir, name) for name in needed}
    seeds = {name: artifact.manifest["settings"]["run"]["seed"] for name, artifact in artifacts.items()}
    if len(set(seeds.values())) > 1:
        raise ArtifactError(f"{run_dir}: stages of different seeds, {seeds}. Next: make all of one seed")
    evaluation = artifacts["evaluation"].report
    if (of := evaluation["of"]) != "actor":
        raise ArtifactError(
            f"{run_dir}/evaluation is of {of}; a summary is of the actor. Next: make evaluation with "
            "evaluation.of=actor and --fresh"
        )
    measures = evaluation["measures"]
    asked = evaluation.get("feedback_tool")
    minutes = {name: artifact.manifest["wall_seconds"] / 60 for name, artifact in artifacts.items()}
    return {
        "seed": seeds["tasks"],
        "minutes": round(sum(minutes.values()), 2),
        **{measure: gained(measures[measure]["all"]) for measure in MEASURES},
        "by_slice": {name: gained(comparison) for name, comparison in measures["first_try"].items()},
        **({"feedback_tool": asked} if asked else {}),
        "critic": critic_of(artifacts["critic_report"].report) if with_critic else None,
        "budget": budget_of(run_dir, artifacts),
        "minutes_by_stage": {name: round(value, 2) for name, value in minutes.items()},
    }


def gained(comparison: dict[str, Any]) -> dict[str, Any]:
    """Returns one comparison of the evaluation in the summary's form."""
    gain = comparison["gain"]
    return {
        "start": comparison["start"]["value"],
        "actor": comparison["actor"]["value"],
        "gain": gain["value"],
        "interval": [gain["low"], gain["high"]],
        "tasks": comparison["tasks"],
        "rollouts": comparison["rollouts"],
    }


def critic_of(audit: dict[str, Any]) -> dict[str, Any]:
    """Returns what the critic report says, in the summary's form."""
    found: dict[str, Any] = {}
    for name in CRITIC:
        measure = audit["measures"]["bare"][name.replace("_vs_", "_over_")]
        found[name] = {"value": measure["value"], "interval": [measure["low"], measure["high"]]}
    return found | {"gate": audit["gate"]["verdict"], "not_measured": audit["gate"]["not_measured"]}


def budget_of(run_dir: Path, artifacts: dict[str, Artifact]) -> dict[str, Any]:
    """Returns what was sampled to train: tokens, rollouts, updates; by stage as well.

    A refreshed critic cost another such chain: its sampling counts as `refresh`. Raises ArtifactError if a
    run of a refresh is gone, so that nobody knows what it cost.
    """
    by_stage = {
        name: sampled_in([artifacts[name].table("rollouts")]) for name in SAMPLING if name in artifacts
    }
    report = artifacts["actor"].report
    made = report.get("refreshes", [])
    again = [
        table
        for run in (*made, *report.get("refused_refreshes", []))
        for table in sampled_by(run_dir / run, is_whole=run in made)
    ]
    if again:
        by_stage["refresh"] = sampled_in(again)
    return {
        "tokens": sum(stage["tokens"] for stage in by_stage.values()),
        "rollouts": sum(stage["rollouts"] for stage in by_stage.values()),
        "updates": report["updates"],
        "by_stage": by_stage,
    }


def sampled_in(tables: Iterable[pa.Table]) -> dict[str, int]:
    """Returns how many sampled rollouts, and tokens of them, some tables hold; recorded ones are none."""
    rollouts, tokens = sum((sampled_by_row(table).sum(axis=0) for table in tables), np.zeros(2))
    return {"rollouts": int(rollouts), "tokens": int(tokens)}


def sampled_by(refresh: Path, *, is_whole: bool) -> list[pa.Table]:
    """Returns what a refresh sampled, stage by stage; one that gave no critic, as far as each came."""
    for stage in REFRESHED:  # a refresh that labels or fit refused has no audit
        if not (refresh / stage).is_dir() and (is_whole or stage != REFRESHED[-1]):
            raise ArtifactError(f"{refresh / stage} is missing, so nobody knows what this refresh cost")
    found = [rows_of(refresh / stage, "rollouts") for stage in REFRESHED]
    return [table for table in found if table is not None]
