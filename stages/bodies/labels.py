"""Continues the chosen states and makes labels of what came of them."""

from contextlib import closing

from critics.labels.checks import check_labels
from critics.labels.cost_report import audit_labels
from critics.labels.named_targets import retarget
from critics.labels.samples import samples_of
from critics.labels.soft_targets import build_labels
from env.play.requests import EpisodeRequest
from env.play.shards import commit_rollouts, play_shards
from env.play.team import Job
from env.play.units import Episodes
from pipeline.columns import LABELS
from pipeline.runner import Start
from pipeline.tables import labels_table
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.wiring.hands import Recipe, make_hands, unasked
from stages.wiring.inputs import rollouts_of


def make(
    start: Start[Config], work: tuple[list[Rollout], dict[str, Task], list[list[EpisodeRequest]]]
) -> None:
    """Continues the chosen states, a shard at a time, then fits the targets."""
    settings = start.config.labels
    rollouts, tasks, requests = work
    recipe = Recipe(unasked(start.config), start.inputs["sft"].path("policy"))

    def job_of(index: int) -> Job:
        return recipe, Episodes(requests[index])

    with closing(make_hands(start.config, start.log_folder)) as hands:
        for shard, played in play_shards(hands, start.shards, job_of, start.shards.item_done):
            commit_rollouts(start.shards, shard, played)

    continued = rollouts_of(start.shards)
    policy_digest = (continued or rollouts)[0].policy_digest  # a scripted agent's rollouts may be continued
    sampled_tokens = sum(rollout.num_trainable_tokens for rollout in continued)
    samples = samples_of(continued, {rollout.rollout_id for rollout in rollouts})
    labels, recovery = build_labels(
        rollouts,
        samples,
        kappa=settings.kappa,
        label_policy_digest=policy_digest,
        seed=start.seed,
        granularity=settings.granularity,
    )
    if settings.target != "soft":
        labels = retarget(labels, rollouts, settings.target, policy=policy_digest)
    kinds = check_labels(labels, rollouts, list(tasks.values()), label_policy_digest=policy_digest)
    start.finish(
        more_tables=((LABELS, labels_table(labels)),),
        report=recovery
        | kinds
        | {"kappa": settings.kappa, "target": settings.target, "sampled_tokens": sampled_tokens}
        | {"audit": audit_labels(labels, rollouts, samples)},
    )
