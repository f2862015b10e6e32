"""Audits the frozen critic on held-out tasks and judges it: report.json, report.html, gate.json.

The label policy plays each audited task; all states of one rollout get K fresh continuations. Siblings,
probes and rollouts that the critic was fitted on are measured beside them.
"""

import sys
from collections.abc import Sequence

from critics.frozen.contract import read_contract
from env.catalog import offer_of
from pipeline.artifacts.plan import in_shards
from pipeline.columns import ROLLOUTS, STEPS
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import seed_of
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.statistics import MIN_CLUSTERS
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.wiring.audit import fitted_rollouts
from stages.wiring.inputs import tasks_of_split
from stages.wiring.preflight import check_installed
from stages.wiring.prompt_room import check_prompts

Work = tuple[list[Sequence[Task]], list[Sequence[Rollout]]]
"""Shards of audited tasks, and of rollouts that the critic was fitted on."""


def audit_tasks(start: Start[Config]) -> list[Task]:
    """Returns the audited tasks: the same number of each held-out split, chosen by hash.

    Only tasks of clusters without training tasks: the gate judges these alone, and others cost as much.
    Raises ArtifactError if there are none.
    """
    trained = {task.cluster for task in tasks_of_split(start, "train")}
    chosen: list[Task] = []
    for split in start.config.held_out:
        tasks = [task for task in tasks_of_split(start, split) if task.cluster not in trained]
        tasks.sort(key=lambda task: seed_of(start.seed, "audit", task.task_id))
        chosen += tasks[: start.config.critic_report.tasks_per_split]
    if not chosen:
        raise ArtifactError(
            f"run.held_out = {', '.join(start.config.held_out)}: all tasks are of clusters with training "
            "tasks, and the gate judges unseen ones. Next: name a split of unseen clusters too; allowed: "
            f"{', '.join(offer_of(start.config.tasks.environment).splits[1:])}"
        )
    return chosen


def plan(start: Start[Config]) -> Plan[Work]:
    """Chooses the audited tasks, and the fitted rollouts that are continued as a reference."""
    settings = start.config.critic_report
    contract, _ = read_contract(start.inputs["critic"].path("critic"), with_files=False)
    if settings.guided and "guided" not in contract.contexts:
        raise ArtifactError(
            "critic_report.guided = true, but the critic was fitted on bare states alone, so its values "
            "after feedback mean nothing. Next: critic_report.guided=false, or rollouts of several attempts "
            "(rollouts.chain.num_attempts), then labels and critic of them",
            code=ExitCode.QUALITY,
        )
    tasks = audit_tasks(start)
    # Said, not refused: the page is worth its rollouts to whoever wants to see what the critic knows.
    if not contract.converged:
        start.say(
            "the critic ran out of epochs before it converged, so the gate will fail whatever is audited. "
            "Next: stop here and raise critic.max_epochs, or go on for the page alone"
        )
    if (clusters := len({task.cluster for task in tasks})) < MIN_CLUSTERS:
        start.say(
            f"the audited tasks are of {clusters} clusters: below {MIN_CLUSTERS} no bound can be given, so "
            "the gate will fail. Next: more held-out tasks (tasks.num_held_out, "
            "critic_report.tasks_per_split), or more clusters among them"
        )
    fitted = fitted_rollouts(start, settings.fit_tasks)
    steps = offer_of(start.config.tasks.environment).steps_at_most(start.config.tasks)
    size = start.config.run.per_shard(settings.rollouts_per_task(steps))
    shards, fitted_shards = in_shards(tasks, size), in_shards(fitted, size)
    check_prompts(start)
    check_installed(start.config, engine=True, feedback=True)
    return Plan(
        items=[[task.task_id for task in shard] for shard in shards]
        + [[rollout.task_id for rollout in shard] for shard in fitted_shards],
        tables=(ROLLOUTS, STEPS),
        unit="tasks",
        estimate={
            "rollouts_at_most": len(tasks) * (1 + settings.guided) * settings.draws,
            "continuations_per_state": settings.num_continuations,
            "sibling_sets": min(settings.sibling_sets, len(tasks)),
            "fit_tasks": len(fitted),
        },
        work=(shards, fitted_shards),
    )


STAGE = Stage(
    name="critic_report",
    code_version=20,
    inputs=lambda config: ("tasks", "sft", "rollouts", "labels", "critic"),
    sections=("critic_report", "run.held_out", "engine", "sampling", "prompt", "feedback", "tasks"),
    plan=plan,
    make="stages.bodies.critic_report:make",
    may_have_help=True,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
