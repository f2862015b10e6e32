"""The audit on held-out tasks, and the gate."""

from __future__ import annotations

from pydantic import Field

from pipeline.settings import Section
from stages.settings.splits import HeldOutSplits


class CriticReport(Section):
    """The audit on held-out tasks, and the gate."""

    splits: HeldOutSplits = Field(
        ("val", "test_unseen_company"),
        min_length=1,
        description="held-out splits to audit on, each once; those of unseen clusters decide",
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
    guided: bool = Field(
        True, description="audit and judge states after feedback too; an actor trained on them needs it"
    )
    sibling_sets: int = Field(
        100, ge=0, description="tasks on which several next steps of one state are compared; 0 measures none"
    )
    probe_rollouts: int = Field(400, ge=0, description="audited rollouts that are probed; 0 measures none")
