"""Makes feedback-guided rollouts of the starting policy, and their steps.

Groups are attempt chains: attempt k sees the feedback on the failed attempts before it. A share of the
groups is feedback-free: one bare set of draws.
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


def plan(start: Start[Config]) -> Plan[list[Sequence[Group]]]:
    """Chooses the groups of the training split's tasks."""
    settings = start.config.rollouts
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
