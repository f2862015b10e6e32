"""The audit on held-out tasks, and the gate, whose thresholds are constants of critics/report/gate.py."""

from __future__ import annotations

from pipeline.settings import Section, setting

STEPS_OF_A_ROLLOUT = 4
"""Of which the size of a shard follows (start value)."""


class CriticReport(Section):
    """The audit on held-out tasks, and the gate."""

    tasks_per_split: int = setting(
        100, ge=1, description="audited tasks of each held-out split of unseen clusters"
    )
    draws: int = setting(
        4, ge=2, description="bare rollouts of each task: the per-task rate needs others", advanced=True
    )
    num_continuations: int = setting(32, ge=2, description="K fresh continuations of each state")
    guided: bool = setting(
        True, description="audit and judge states after feedback too; an actor trained on them needs it"
    )
    fit_tasks: int = setting(
        50,
        ge=0,
        description="of the critic's training tasks, audited as well to measure memorisation; 0 is none",
        advanced=True,
    )
    sibling_sets: int = setting(
        100,
        ge=0,
        description="tasks on which several next steps of one state are compared; 0 measures none",
        advanced=True,
    )
    probe_rollouts: int = setting(
        400, ge=0, description="audited rollouts that are probed; 0 measures none", advanced=True
    )

    @property
    def rollouts_per_task(self) -> int:
        """Rollouts and continuations of an audited task, about."""
        return (1 + self.guided) * (self.draws + STEPS_OF_A_ROLLOUT * self.num_continuations)
