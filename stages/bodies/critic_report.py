"""Plays the audit of a critic, measures it and judges it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from operator import attrgetter
from typing import Any

import numpy as np

from critics.audit.data import AuditData, audited_states, check_judged, failed_tasks
from critics.audit.siblings import measured_siblings
from critics.frozen.critic import FrozenCritic
from critics.labels.samples import rewards_of
from critics.report.build import build_report
from critics.report.page import report_page
from env.catalog import offer_of
from env.play.shards import play_shards, refuse_outage, said_of_failures
from env.play.team import Job, Team
from pipeline.artifacts.commit import MAX_FAILED_SHARE
from pipeline.columns import VALUES
from pipeline.errors import ArtifactError, ExitCode
from pipeline.runner import Start
from pipeline.tables import rollouts_table, steps_table, values_table
from pipeline.types import Rollout, Task
from stages.critic_report import Work
from stages.settings import Config
from stages.wiring.audit import audit_of, in_fixed_order, reference_of, sibling_tasks, solver_values
from stages.wiring.build import load_critic
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.inputs import rollouts_of, tasks_of_split
from stages.wiring.probes import probe


def make(start: Start[Config], work: Work) -> None:
    """Plays the audit, a shard of tasks at a time, then measures and judges."""
    trained = {task.task_id: task for task in tasks_of_split(start, "train")}
    with closing(make_hands(start.config, start.log_folder)) as hands:
        hands.start(len(start.shards.missing))
        team = Team(hands, Recipe(start.config, start.inputs["sft"].path("policy")))
        critic = load_critic(start.config, start.inputs["critic"].path("critic"))
        audited = team.ask(attrgetter("settings"))
        critic.check_matches(
            tokenizer_digest=audited.tokenizer_digest,
            label_policy_digest=audited.policy_digest,
            temperature=audited.temperature,
            max_response_tokens=audited.max_response_tokens,
        )
        play(start, team, work, trained)
        rollouts = rollouts_of(start.shards)
        check_graded(start, rollouts)
        whole = [r for r in rollouts if r.kind == "whole" and r.reward is not None and r.steps]
        values = {r.rollout_id: v for r, v in zip(whole, critic.values(whole), strict=True)}
        found = measured(start, team, critic, work, rollouts, values, trained)
    report = build_report(
        **found,
        converged=critic.contract.converged,
        policy_digest=audited.policy_digest,
        critic_digest=critic.digest,
        privileged=critic.contract.privileged,
        evaluations=json.loads(start.inputs["critic"].path("critic/evaluations.json").read_text()),
        judged_contexts=("bare", "guided") if start.config.critic_report.guided else ("bare",),
        seed=start.seed,
    )
    start.output("gate.json").write_text(json.dumps(report["gate"], indent=1, sort_keys=True) + "\n")
    start.output("report.html", volatile=True).write_text(report_page(report), encoding="utf-8")
    rows = [
        (r.rollout_id, step.step_index, r.context, critic.digest, float(v))
        for r in whole
        for step, v in zip(r.steps, values[r.rollout_id], strict=True)
    ]
    start.finish(
        more_tables=((VALUES, values_table(rows)),), report=report, verdict={"passed": report["passed"]}
    )
    for line in report["opening"]:
        start.say(line)


def play(start: Start[Config], team: Team, work: Work, trained: Mapping[str, Task]) -> None:
    """Plays and commits what is left to do: audited tasks, then tasks that the critic was fitted on."""
    shards, fitted_shards = work
    with_siblings = sibling_tasks(start, [task for shard in shards for task in shard])

    def job_of(index: int) -> Job:
        if index < len(shards):
            return team.recipe, audit_of(start, shards[index], with_siblings)
        return team.recipe, reference_of(start, fitted_shards[index - len(shards)], trained)

    for shard, played in play_shards(team.hands, start.shards, job_of, lambda _: start.stop_if_asked()):
        rollouts = in_fixed_order(played.rollouts, shard.item_ids)
        failed = Counter(failed_tasks(rollouts).values())
        tables = {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)}
        done = len(shard.item_ids) - failed.total()
        refuse_outage(start.shards, shard, failed, rollouts, done)
        start.shards.commit(shard.index, tables, done=done, failed=failed)


def check_graded(start: Start[Config], rollouts: Sequence[Rollout]) -> None:
    """Raises ArtifactError if too many rollouts could not be graded, spread over tasks that did not fail."""
    ungraded = sum(rollout.reward is None for rollout in rollouts)
    if start.shards.counts().failed_share <= MAX_FAILED_SHARE < ungraded / max(1, len(rollouts)):
        raise ArtifactError(
            f"{ungraded} of {len(rollouts)} rollouts could not be graded; at most "
            f"{MAX_FAILED_SHARE:.0%} may be, or what is measured would be biased"
            f"{said_of_failures(rollouts)}. Next: remove the cause "
            f"(see {start.log_folder}), then make critic_report SET=--fresh",
            code=ExitCode.FAILED_ITEMS,
        )


def measured(
    start: Start[Config],
    team: Team,
    critic: FrozenCritic,
    work: Work,
    rollouts: Sequence[Rollout],
    values: Mapping[str, np.ndarray],
    trained: Mapping[str, Task],
) -> dict[str, Any]:
    """Returns what `build_report` reads of the audit: states, siblings, probes, states of fitted tasks.

    `rollouts` are everything that was played; `values` are rollout_id -> [T] of whole graded rollouts of
    audited tasks.
    """
    settings, environment = start.config.critic_report, start.config.tasks.environment
    tasks = {task.task_id: task for shard in work[0] for task in shard}
    parents = {r.rollout_id: r for r in rollouts if r.rollout_id in values}
    whole = list(parents.values())

    def audited(
        of: Sequence[Rollout], values: Mapping[str, np.ndarray], tasks: Mapping[str, Task]
    ) -> AuditData:
        exact = solver_values(start.config, of, tasks)
        return audited_states(of, rewards_of(rollouts, values), values, tasks, solver_values=exact)

    trained_clusters = {task.cluster for task in trained.values()}
    found: dict[str, Any] = {"audit": audited(whole, values, tasks), "trained_clusters": trained_clusters}
    check_judged(found["audit"], trained_clusters, rollouts)
    if settings.sibling_sets:
        clusters = {task.task_id: task.cluster for task in tasks.values()}
        found["siblings"] = measured_siblings(rollouts, parents, critic.values, clusters)
    if settings.probe_rollouts and offer_of(environment).probe_edits:
        first = [r for r in whole if r.draw == 0]
        number = settings.probe_rollouts
        found["probed"] = probe(environment, team, critic, first, values, tasks, num_rollouts=number)
    if fitted := [rollout for shard in work[1] for rollout in shard]:
        own = {r.rollout_id: v for r, v in zip(fitted, critic.values(fitted), strict=True)}
        found["fitted"] = audited(fitted, own, trained)
    return found
