"""Fits the step-level critic to convergence, calibrates it and freezes it behind its contract.

Inside the training split whole clusters are kept apart: some fit the critic, some decide when it has
converged, and these and the rest calibrate it. Nothing here sees `val` or an unseen split.
"""

import sys
from pathlib import Path

from critics.fit.data import FitData
from pipeline.models.folder import content_files
from pipeline.runner import Plan, Stage, Start, run_stage
from stages.settings import Config
from stages.wiring.critic_data import data_of, trunk_of
from stages.wiring.preflight import check_installed, trains_in_ranks


def plan(start: Start[Config]) -> Plan[tuple[FitData, Path]]:
    """Checks data and trunk, so that what is refused leaves nothing half done under wrong settings."""
    work = data_of(start), trunk_of(start)
    check_installed(start.config, training=True)
    estimate = {"epochs_at_most": start.config.critic.max_epochs}
    return Plan(items=[["critic"]], unit="critics", estimate=estimate, work=work)


STAGE = Stage(
    name="critic",
    code_version=14,
    inputs=lambda config: ("tasks", "sft", "rollouts", "labels"),
    sections=("critic", "training", "tasks.environment"),
    files=lambda config: [] if config.critic.trunk == "policy" else content_files(Path(config.critic.trunk)),
    plan=plan,
    make="stages.bodies.critic:make",
    has_ranks=trains_in_ranks,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
