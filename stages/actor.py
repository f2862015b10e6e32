"""Trains the actor on fresh rollouts of every iteration, with the configured credit mode.

v_dapo adds the frozen critic's step advantages to group-relative ones; a critic whose gate failed is
refused. Every rollout is committed before the update that uses it, surplus ones included.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from critics.drift.state import DriftRules
from pipeline.columns import LOOKS, ROLLOUTS, STEPS, UPDATES, VALUES
from pipeline.credit import Credit, make_credit
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.types import Task
from stages.settings import Config
from stages.settings.credit import credit_options
from stages.wiring.inputs import rollouts_of, tasks_of_split
from stages.wiring.preflight import check_installed, check_plays_weights, trains_in_ranks
from stages.wiring.prompt_room import check_prompts
from stages.wiring.refusals import contexts_of, stamp_of
from stages.wiring.solutions import refuse_recorded


@dataclass(frozen=True, slots=True)
class Work:
    """What the plan has found out."""

    credit: Credit  # as configured; of v_dapo with a weak critic that may go on, alpha 0
    contexts: tuple[str, ...]  # that it trains in, as critics name them
    rules: DriftRules
    stamp: dict[str, Any] | None  # what the report says of the critic's gate
    tasks: list[Task]
    val: list[Task]


def plan(start: Start[Config]) -> Plan[Work]:
    """Chooses the credit mode, behind a gate where it needs a critic, and plans the iterations."""
    settings = start.config.actor
    check_plays_weights(start.config, "actor")
    options, rules, stamp = credit_options(settings.credit), DriftRules(), None
    contexts = contexts_of(settings.chain, settings.guided)
    if settings.credit.mode == "v_dapo" and settings.needs_critic:
        rules = DriftRules(**settings.credit.drift.model_dump(exclude={"refresh_tasks"}))
        if settings.reads_critic:
            gate = json.loads(start.inputs["critic_report"].path("gate.json").read_text("utf-8"))
            options["adv_rmse"] = gate["adv_rmse"]["value"] or 0.0
            stamp = stamp_of(gate, contexts, settings.credit.on_weak_critic)
            if stamp["override"] == "group_only":
                options["alpha"] = 0.0
    if settings.reads_rollouts:
        refuse_recorded(
            rollouts_of(start.inputs["rollouts"]),
            "actor.credit.pretrain_values",
            "learns the starting policy's values from its own rollouts",
            "actor.credit.pretrain_values=false",
        )
    tasks, val = tasks_of_split(start, "train"), tasks_of_split(start, "val")
    check_prompts(start)
    check_installed(start.config, engine=True, training=True, feedback=True)
    tasks_at_most = settings.num_iterations * settings.updates_per_iteration * settings.tasks_per_update
    groups = tasks_at_most * settings.rounds_at_most
    return Plan(
        items=[[f"iteration-{i:05d}"] for i in range(settings.num_iterations)],
        tables=(ROLLOUTS, STEPS, VALUES, UPDATES, LOOKS),
        unit="iterations",
        estimate={"updates": settings.num_updates, "groups_at_most": groups},
        work=Work(make_credit(**options), contexts, rules, stamp, tasks, val),
    )


STAGE = Stage(
    name="actor",
    code_version=17,
    inputs=lambda config: (
        *("tasks", "sft"),
        *(("critic", "critic_report") if config.actor.reads_critic else ()),
        *(("rollouts",) if config.actor.reads_rollouts else ()),
        *(("stored",) if config.stored.objective.kind != "none" else ()),
    ),
    sections=("actor", "run.round", "engine", "training", "sampling", "prompt", "feedback", "tasks"),
    # A refresh makes the critic by these.
    more_sections=lambda config: (
        ("run.held_out", "rollouts", "labels", "critic", "critic_report") if config.actor.may_refresh else ()
    ),
    plan=plan,
    make="stages.bodies.actor:make",
    has_ranks=trains_in_ranks,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
