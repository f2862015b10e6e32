"""The audit on held-out tasks, and the gate."""

from __future__ import annotations

from pydantic import Field

from pipeline.settings import Section
from stages.settings.splits import HeldOutSplits


class CriticReport(Section):
    """The audit on held-out tasks, and the gate."""

    splits: HeldOutSplits = Field(
        ("val", "test_unseen_company"), min_length=1, description="held-out splits to audit on, each once"
    )
    tasks_per_split: int = Field(100, ge=1, description="audited tasks of each split")
    draws: int = Field(4, ge=2, description="bare rollouts of each task: the per-task rate needs others")
    num_continuations: int = Field(32, ge=2, description="K fresh continuations of each")
    tasks_per_shard: int = Field(32, ge=1, description="tasks that are committed together")
    fit_tasks: int = Field(
        50,
        ge=0,
        description="tasks that the critic was fitted on, continued afresh as well: what it knows by heart; "
        "0 measures none",
    )
    bootstrap: int = Field(
        1000,
        ge=100,
        description="resamples of clusters behind each interval; 500 at most for parts of the audit and "
        "first errors, 200 for the line through log-odds",
    )
    num_sample_rollouts: int = Field(6, ge=0, description="rollouts drawn with their values")
    guided: bool = Field(
        True, description="audit and judge states after feedback too; an actor trained on them needs it"
    )
    min_advantage_correlation: float = Field(0.2, description="gate: lower bound of rho_A above this")
    max_calibration_excess: float = Field(0.03, gt=0, description="gate: ECE below its floor plus this")
    sibling_sets: int = Field(
        100, ge=0, description="tasks on which several next steps of one state are compared; 0 measures none"
    )
    probe_rollouts: int = Field(400, ge=0, description="audited rollouts that are probed; 0 measures none")
    max_probe_rise: float = Field(
        0.02, ge=0, description="gate: a cosmetic change may raise the value by this on average"
    )
    judge_probes: bool = Field(True, description="gate: whether a probe that does not hold fails the critic")
