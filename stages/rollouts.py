"""Makes feedback-guided rollouts of the starting policy, and their steps.

Groups are attempt chains: attempt k sees the feedback on the failed attempts before it. A share of the
groups is feedback-free: one bare set of draws. Or nothing is played: recorded solutions become rollouts.
"""

import sys
from collections.abc import Sequence

from env.play.chains import Group, plan_groups
from pipeline.artifacts.plan import in_shards
from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.columns import ROLLOUTS, STEPS
from stages.settings import Config
from stages.wiring.inputs import tasks_of_split
from stages.wiring.preflight import check_installed
from stages.wiring.solutions import Recorded, plan_recorded


def plan(start: Start[Config]) -> Plan[list[Sequence[Group]] | Recorded]:
    """Chooses the groups of the training split's tasks, or reads their recorded solutions."""
    settings = start.config.rollouts
    if settings.solutions is not None:
        return plan_recorded(start, settings.solutions)
    groups = plan_groups(
        tasks_of_split(start, "train")[: settings.num_tasks],
        stage_key=start.stage_key,
        seed=start.seed,
        iteration=0,
        **settings.chain.model_dump(),
    )
    shards = in_shards(groups, start.config.run.per_shard(settings.chain.rollouts_per_group))
    planned = sum(len(group.rollout_ids) for group in groups)
    check_installed(start.config, engine=True)
    return Plan(
        items=[[rollout_id for group in shard for rollout_id in group.rollout_ids] for shard in shards],
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        estimate={"rollouts": planned, "tokens_at_most": planned * start.config.sampling.max_response_tokens},
        work=shards,
    )


STAGE = Stage(
    name="rollouts",
    code_version=4,
    inputs=lambda config: ("tasks", "sft"),
    sections=("rollouts", "sampling", "prompt", "engine", "tasks"),
    plan=plan,
    make="stages.bodies.rollouts:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
