"""Makes step labels: what fresh continuations and unguided outcomes say of V(s_i) under the starting policy.

A state gets n continuations, replayed exactly up to it and sampled on. It is chosen without looking at the
samples that label it, among the clusters that fit and validate the critic.
"""

import sys

from critics.labels.checks import check_outcomes_differ
from critics.labels.choose_states import choose_states
from critics.labels.splits import parts_of
from env.catalog import offer_of
from env.play.continuations import Continuations
from env.play.requests import EpisodeRequest
from pipeline.artifacts.plan import in_shards
from pipeline.columns import ROLLOUTS, STEPS
from pipeline.errors import ConfigError
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.types import Rollout, Task
from stages.settings import Config, Labels
from stages.wiring.inputs import rollouts_of, tasks_by_id
from stages.wiring.preflight import check_installed, check_trunk


def plan(start: Start[Config]) -> Plan[tuple[list[Rollout], dict[str, Task], list[list[EpisodeRequest]]]]:
    """Chooses the states that are continued."""
    settings, offer = start.config.labels, offer_of(start.config.tasks.environment)
    if offer.feedback_tool:
        raise ConfigError(
            f"rewards of {offer.name} may lie below 0, and labels are chances of success. Next: train "
            "without a critic, make tasks sft actor evaluation"
        )
    rollouts, tasks = rollouts_of(start.inputs["rollouts"]), tasks_by_id(start)
    check_outcomes_differ(rollouts)
    shares = start.config.critic
    part_of = parts_of(
        rollouts, tasks, fit_share=shares.fit_share, validate_share=shares.validate_share, seed=start.seed
    )
    # Calibration goes by outcomes, so continuations are for those that fit and validate.
    number = settings.num_continuations
    continued = [r for r in rollouts if number and part_of.get(r.rollout_id) in ("fit", "validate")]
    states = choose_states(
        continued, max_states=settings.max_states, guided_share=settings.guided_share, seed=start.seed
    )
    continuations = Continuations(start.stage_key, start.seed, "labels")
    parents = {rollout.rollout_id: rollout for rollout in rollouts}
    shards: list[list[EpisodeRequest]] = []
    tokens_left = 0
    for some in in_shards(states, start.config.run.per_shard(number)):
        shards.append([])
        for state in some:
            parent = parents[state.rollout_id]
            tokens_left += sum(parent.loss_mask[parent.steps[state.step_index].token_start :])
            shards[-1] += continuations.of(parent, state.step_index, tasks[parent.task_id], number)
    ids = [[request.rollout_id for request in shard] for shard in shards]
    planned = sum(map(len, ids))
    check_trunk(start.config)
    check_installed(start.config, engine=bool(planned))
    for words in without_effect(settings):
        start.say(words)
    return Plan(
        items=ids,
        tables=(ROLLOUTS, STEPS),
        unit="continuations",
        estimate={
            "states": len(states),
            "continuations": planned,
            "tokens_expected": number * tokens_left,  # as many as the rollouts themselves took
            "tokens_at_most": planned * start.config.sampling.max_response_tokens,
        },
        work=(rollouts, tasks, shards),
    )


def without_effect(settings: Labels) -> list[str]:
    """Returns which settings are not their defaults in vain, in words; arms of comparisons set them, too."""
    idle = {"kappa", "granularity"} if settings.target != "soft" else set[str]()
    idle |= {"max_states", "guided_share"} if not settings.num_continuations else set()
    given = settings.model_dump(include=idle, exclude_defaults=True)
    return [
        f"labels.{name} = {value} has no effect with labels.target = {settings.target} and "
        f"labels.num_continuations = {settings.num_continuations}"
        for name, value in given.items()
    ]


STAGE = Stage(
    name="labels",
    code_version=11,
    inputs=lambda config: ("tasks", "sft", "rollouts"),
    sections=(
        *("labels", "engine", "sampling", "prompt.style", "prompt.thinking", "prompt.verbosity", "tasks"),
        *("critic.fit_share", "critic.validate_share"),  # whom it calibrates on is not continued
    ),
    plan=plan,
    make="stages.bodies.labels:make",
    may_have_help=True,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
