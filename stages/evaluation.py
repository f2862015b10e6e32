"""Sets the actor beside the starting policy on held-out tasks: first try, greedy, and with feedback.

`evaluation.of` may name another stage, whose policy then stands for the actor.

Both play the same tasks with the same seeds, so gains are paired by task; intervals are bootstraps over
clusters. `with_feedback` is success by the last attempt of a chain of single attempts.
"""

import sys
from collections.abc import Sequence

from env.play.chains import Group, plan_groups
from pipeline.artifacts.plan import in_shards
from pipeline.columns import ROLLOUTS, STEPS
from pipeline.ids import digest
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.types import Task
from stages.settings import Config
from stages.settings.sampling import Evaluation
from stages.wiring.inputs import policies_of, tasks_of_split
from stages.wiring.preflight import check_installed, check_plays_weights
from stages.wiring.prompt_room import check_prompts

Work = tuple[list[Task], list[tuple[str, str, Sequence[Group]]]]
"""The tasks, and (policy, "sampled" or "greedy", groups) of each shard."""


def planned_groups(start: Start[Config], tasks: Sequence[Task], policy: str) -> dict[str, list[Group]]:
    """Returns "sampled" groups, `draws` chains of single attempts per task, and "greedy" ones, a try each."""
    draws, key = start.config.evaluation.draws, digest(start.stage_key, policy)

    def groups(iteration: int, num_attempts: int) -> list[Group]:
        return plan_groups(
            tasks, stage_key=key, seed=start.seed, iteration=iteration, num_attempts=num_attempts, draws=1
        )

    sampled = [group for draw in range(draws) for group in groups(draw, Evaluation.num_attempts)]
    return {"sampled": sampled, "greedy": groups(draws, 1)}


def plan(start: Start[Config]) -> Plan[Work]:
    """Plans both policies on the same tasks."""
    check_plays_weights(start.config, "evaluation")
    tasks = [task for split in start.config.held_out for task in tasks_of_split(start, split)]
    shards = [
        (policy, kind, shard)
        for policy in policies_of(start.config)
        for kind, groups in planned_groups(start, tasks, policy).items()
        for shard in in_shards(groups, start.config.run.per_shard(Evaluation.num_attempts))
    ]
    check_prompts(start)
    check_installed(start.config, engine=True, feedback=True)
    return Plan(
        items=[[name for group in groups for name in group.rollout_ids] for _, _, groups in shards],
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        estimate={"tasks": len(tasks), "policies": 2},
        work=(tasks, shards),
    )


STAGE = Stage(
    name="evaluation",
    code_version=8,
    inputs=lambda config: ("tasks", "sft", config.evaluation.of),
    sections=("evaluation", "run.held_out", "engine", "sampling", "prompt", "feedback", "tasks"),
    plan=plan,
    make="stages.bodies.evaluation:make",
    may_have_help=True,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
