"""Makes feedback-guided rollouts of the starting policy, and their steps.

Groups are attempt chains: attempt k sees the feedback on the failed attempts before it. A share of the
groups is feedback-free: one bare set of draws. Recorded solutions, if there are any, become rollouts as well.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from env.catalog import offer_of
from env.play.chains import Group, plan_groups
from pipeline.artifacts.plan import in_shards
from pipeline.columns import ROLLOUTS, STEPS
from pipeline.runner import Plan, Stage, Start, run_stage
from stages.settings import Config
from stages.wiring.inputs import tasks_of_split
from stages.wiring.preflight import check_installed, check_trunk
from stages.wiring.prompt_room import check_prompts
from stages.wiring.solutions import Recorded, recorded_of


@dataclass(frozen=True, slots=True)
class Work:
    """What is made, in shards: what is played first, then what is recorded."""

    groups: list[Sequence[Group]]
    recorded: Recorded


def plan(start: Start[Config]) -> Plan[Work]:
    """Chooses the groups of the training split's tasks, and reads their recorded solutions."""
    settings = start.config.rollouts
    tasks = tasks_of_split(start, "train")
    groups = plan_groups(
        tasks[: settings.num_tasks],
        stage_key=start.stage_key,
        seed=start.config.run.sampling_seed,
        iteration=0,
        **settings.chain.model_dump(),
    )
    shards = in_shards(groups, start.config.run.per_shard(settings.chain.rollouts_per_group))
    planned = sum(len(group.rollout_ids) for group in groups)
    recorded = recorded_of(start, tasks)
    check_trunk(start.config)
    if planned:
        check_prompts(start)
    prompt, styles = start.config.prompt, offer_of(start.config.tasks.environment).styles
    if prompt.thinking and (style := prompt.style or next(iter(styles))) != "full":
        start.say(f"prompt.thinking = true has no effect with prompt.style = {style}, but with full alone")
    check_installed(start.config, engine=bool(planned), feedback=bool(planned))  # recorded: nobody plays
    estimate = {"rollouts": planned, "tokens_at_most": planned * start.config.sampling.max_response_tokens}
    return Plan(
        items=[[rollout_id for group in shard for rollout_id in group.rollout_ids] for shard in shards]
        + recorded.items,
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        estimate=estimate | recorded.estimate,
        work=Work(shards, recorded),
    )


STAGE = Stage(
    name="rollouts",
    code_version=7,
    inputs=lambda config: ("tasks", "sft"),
    sections=("rollouts", "run.round", "sampling", "prompt", "feedback", "engine", "tasks"),
    files=lambda config: config.rollouts.solutions.files if config.rollouts.solutions else [],
    plan=plan,
    make="stages.bodies.rollouts:make",
    may_have_help=True,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
