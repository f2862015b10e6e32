"""Plays the audit of a critic, measures it and judges it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from critics.audit.collected import audited_states, check_judged
from critics.audit.data import AuditData
from critics.audit.siblings import measured_siblings
from critics.frozen.contract import FrozenCritic
from critics.labels.samples import rewards_of
from critics.report.build import build_report
from critics.report.page import report_page
from env.catalog import offer_of
from env.play.player import Player
from pipeline.artifacts.runner import Start
from pipeline.tables import VALUES, rollouts_from, rollouts_table, steps_table, values_table
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.wiring.audit import play_audit, play_fitted, sibling_tasks, solver_values
from stages.wiring.build import load_critic
from stages.wiring.inputs import policy_of, tasks_of_split
from stages.wiring.player import make_player
from stages.wiring.probes import probe

Work = tuple[list[Sequence[Task]], list[Sequence[Rollout]]]


def make(start: Start[Config], work: Work) -> None:
    """Plays the audit, a shard of tasks at a time, then measures and judges."""
    policy = policy_of(start)
    critic = load_critic(start.config, start.inputs["critic"].path("critic"))
    player = make_player(start.config, policy)
    critic.check_matches(
        tokenizer_digest=policy.tokenizer_digest,
        label_policy_digest=player.settings.policy_digest,
        temperature=player.settings.temperature,
        max_response_tokens=player.settings.max_response_tokens,
    )
    trained = {task.task_id: task for task in tasks_of_split(start, "train")}
    play(start, player, work, trained)
    rollouts = rollouts_from(start.shards.table("rollouts"), start.shards.table("steps"))
    whole = [r for r in rollouts if r.kind == "whole" and r.reward is not None and r.steps]
    values = {r.rollout_id: v for r, v in zip(whole, critic.values(whole), strict=True)}
    report = build_report(
        **measured(start, player, critic, work, rollouts, values, trained),
        converged=critic.contract.converged,
        policy_digest=player.settings.policy_digest,
        critic_digest=critic.digest,
        evaluations=json.loads(start.inputs["critic"].path("critic/evaluations.json").read_text()),
        labels_report=start.inputs["labels"].report,
        fit_report=start.inputs["critic"].report,
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


def play(start: Start[Config], player: Player, work: Work, trained: Mapping[str, Task]) -> None:
    """Plays and commits what is left to do: audited tasks, then tasks that the critic was fitted on."""
    shards, fitted_shards = work
    with_siblings = sibling_tasks(start, [task for shard in shards for task in shard])
    for shard in start.shards.to_do():
        if shard.index < len(shards):
            rollouts = play_audit(start, player, shards[shard.index], with_siblings)
        else:
            rollouts = play_fitted(start, player, fitted_shards[shard.index - len(shards)], trained)
        ungraded = {r.task_id for r in rollouts if r.reward is None}
        start.shards.commit(
            shard.index,
            {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)},
            done=len(shard.item_ids) - len(ungraded),
            failed={"infra_error": len(ungraded)} if ungraded else {},
        )


def measured(
    start: Start[Config],
    player: Player,
    critic: FrozenCritic,
    work: Work,
    rollouts: Sequence[Rollout],
    values: Mapping[str, np.ndarray],
    trained: Mapping[str, Task],
) -> dict[str, Any]:
    """Returns what `build_report` reads of the audit: states, siblings, probes, states of fitted tasks.

    Args:
        start: of the stage.
        player: plays the probes' changed steps.
        critic: that is audited.
        work: of the plan.
        rollouts: everything that was played.
        values: rollout_id -> [T], of whole graded rollouts of audited tasks.
        trained: training tasks by id.
    """
    settings = start.config.critic_report
    tasks = {task.task_id: task for shard in work[0] for task in shard}
    whole = [r for r in rollouts if r.rollout_id in values]

    def audited(
        of: Sequence[Rollout], values: Mapping[str, np.ndarray], tasks: Mapping[str, Task]
    ) -> AuditData:
        exact = solver_values(start.config, of, tasks)
        return audited_states(of, rewards_of(rollouts, values), values, tasks, solver_values=exact)

    found: dict[str, Any] = {
        "audit": audited(whole, values, tasks),
        "trained_clusters": {task.cluster for task in trained.values()},
    }
    check_judged(found["audit"], found["trained_clusters"], rollouts)
    if settings.sibling_sets:
        clusters = {task.task_id: task.cluster for task in tasks.values()}
        parents = {r.rollout_id: r for r in whole}
        found["siblings"] = measured_siblings(rollouts, parents, critic.values, clusters)
    if settings.probe_rollouts and (edits_of := offer_of(start.config.tasks.environment).probe_edits):
        found["probed"] = probe(
            edits_of,
            player,
            critic,
            [r for r in whole if r.draw == 0],
            values,
            tasks,
            num_rollouts=settings.probe_rollouts,
        )
    if fitted := [rollout for shard in work[1] for rollout in shard]:
        own = {r.rollout_id: v for r, v in zip(fitted, critic.values(fitted), strict=True)}
        found["fitted"] = audited(fitted, own, trained)
    return found
