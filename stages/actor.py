"""Trains the actor on fresh rollouts of every iteration, with the configured credit mode.

v_dapo adds the frozen critic's step advantages to group-relative ones; a critic whose gate failed is
refused. Every rollout is committed before the update that uses it, surplus ones included. The critic
is never trained here; it is watched, and what follows from a drift is a setting.

    make actor CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.credit import Credit, make_credit
from pipeline.tables import ROLLOUTS, STEPS, VALUES
from pipeline.types import Task
from stages.settings import Config
from stages.settings.credit import credit_options
from stages.wiring.inputs import tasks_of_split
from stages.wiring.preflight import check_installed, check_plays_weights
from stages.wiring.refusals import contexts_of, gate_allows, stamp_of


def credit_of(start: Start) -> tuple[Credit, dict[str, Any] | None]:
    """Returns the credit mode as configured; for v_dapo only behind a gate that lets the critic through.

    Returns:
        Credit, and for v_dapo the stamp of its gate.
    """
    settings, contexts = start.config.actor.credit, contexts_of(start.config.actor.chain)
    options, stamp = credit_options(settings), None
    if settings.mode == "v_dapo":
        gate = json.loads(start.inputs["critic_report"].path("gate.json").read_text())
        options["adv_rmse"] = gate["adv_rmse"]["value"] or 0.0
        if not gate_allows(gate, contexts, settings.on_weak_critic):
            options["alpha"] = 0.0
        stamp = stamp_of(gate, contexts, settings.on_weak_critic)
    return make_credit(**options), stamp


def plan(start: Start[Config]) -> Plan[tuple[Credit, dict[str, Any] | None, list[Task], list[Task]]]:
    """Chooses the credit mode, behind a gate where it needs a critic, and plans the iterations."""
    settings = start.config.actor
    check_plays_weights(start.config, "actor")
    credit, stamp = credit_of(start)
    tasks, val = tasks_of_split(start, "train"), tasks_of_split(start, "val")
    planned = settings.num_iterations * settings.updates_per_iteration
    check_installed(start.config, engine=True, training=True)
    return Plan(
        items=[[f"iteration-{i:05d}"] for i in range(settings.num_iterations)],
        tables=(ROLLOUTS, STEPS, VALUES),
        unit="iterations",
        estimate={
            "updates": planned,
            "groups_at_most": planned * settings.tasks_per_update * (1 + settings.max_refills),
        },
        work=(credit, stamp, tasks, val),
    )


STAGE = Stage(
    name="actor",
    code_version=10,
    inputs=lambda config: (
        ("tasks", "sft") + (("critic", "critic_report") if config.actor.credit.mode == "v_dapo" else ())
    ),
    sections=("actor", "engine", "training", "sampling", "prompt", "tasks.environment"),
    plan=plan,
    make="stages.bodies.actor:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
