"""Trains the starting policy on rollouts that are stored already, before the actor samples fresh ones.

Successes of `rollouts` and `labels` are imitated, guided ones on the bare prompt; the frozen critic may say
which steps, also a critic of whoever was recorded. Nothing is sampled. By default there is nothing to do, and
the actor starts from sft's policy.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from pipeline.runner import Plan, Stage, Start, run_stage
from stages.settings import Config
from stages.settings.stored import OfCritic
from stages.wiring.preflight import check_installed, trains_in_ranks
from stages.wiring.refusals import INSTEAD_OF_WEAK, stamp_of
from stages.wiring.stored_data import Material, material_of


@dataclass(frozen=True, slots=True)
class Work:
    """What the plan has found out."""

    material: Material
    stamp: dict[str, Any] | None  # what the report says of the critic's gate; None without one yet


def inputs(config: Config) -> tuple[str, ...]:
    """Returns the stages that are read: labels with continuations, a critic if asked, a round's replay.

    Nobody can play whoever was recorded, so a critic of that has no critic_report: outcomes judge it here.
    """
    objective = config.stored.objective
    judged = () if config.has_recorders_critic else ("critic_report",)
    critic = ("critic", *judged) if isinstance(objective, OfCritic) else ()
    labels = ("labels",) if critic or config.labels.num_continuations else ()
    replay = ("replay",) if config.run.round else ()
    return "tasks", "sft", "rollouts", *labels, *critic, *replay


def plan(start: Start[Config]) -> Plan[Work | None]:
    """Chooses the rollouts, and refuses what they cannot teach."""
    objective, items, unit = start.config.stored.objective, [["policy"]], "policies"
    stamp: dict[str, Any] | None = None
    if objective.kind == "none":
        return Plan(items=items, unit=unit, estimate={"objective": "none, nothing to do"}, work=None)
    if isinstance(objective, OfCritic) and "critic_report" in start.inputs:
        gate = json.loads(start.inputs["critic_report"].path("gate.json").read_text("utf-8"))
        stamp = stamp_of(
            gate,
            ("bare",),
            objective.on_weak_critic,
            instead=INSTEAD_OF_WEAK,
        )
    material = material_of(start)
    check_installed(start.config, training=True)
    estimate = {
        "objective": objective.kind,
        "bare_rollouts": len(material.bare),
        "guided_successes": len(material.guided),
        "epochs_at_most": start.config.stored.max_epochs,
    }
    return Plan(items=items, unit=unit, estimate=estimate, work=Work(material, stamp))


STAGE = Stage(
    name="stored",
    code_version=7,
    inputs=inputs,
    sections=(
        *("stored", "replay.newest", "run.round", "training", "sampling", "tasks"),
        *("prompt.style", "prompt.thinking", "prompt.verbosity"),
    ),
    plan=plan,
    make="stages.bodies.stored:make",
    has_ranks=trains_in_ranks,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
