"""Plays the audit of a critic, measures it and judges it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import partial

import numpy as np

from critics.audit.data import AuditData, AuditRollout
from critics.audit.siblings import measured_siblings
from critics.labels.samples import rewards_of
from critics.report.build import build_report
from critics.report.page import report_page
from env.catalog import ENVIRONMENTS
from env.play.chains import chains_of, plan_groups
from env.play.continuations import Continuations, play_siblings
from env.play.player import Player
from pipeline.artifacts.runner import Start
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import seed_of
from pipeline.tables import VALUES, rollouts_from, rollouts_table, steps_table, values_table
from pipeline.types import Rollout, StateRef, Task
from stages.settings import Config, CriticReport
from stages.wiring.build import load_critic, make_player
from stages.wiring.fitted import play_fitted
from stages.wiring.inputs import policy_of, tasks_of_split
from stages.wiring.probes import probe


def sibling_tasks(start: Start, tasks: Sequence[Task]) -> set[str]:
    """Returns the ids of the audited tasks that a sibling set is played on, chosen by hash."""
    ordered = sorted((seed_of(start.seed, "sibling task", task.task_id), task.task_id) for task in tasks)
    return {task_id for _, task_id in ordered[: start.config.critic_report.sibling_sets]}


def play_audit(start: Start, player: Player, tasks: Sequence[Task], with_siblings: set[str]) -> list[Rollout]:
    """Returns the rollouts of some audited tasks, then the continuations, each in a fixed order."""
    settings: CriticReport = start.config.critic_report
    groups = plan_groups(
        tasks,
        stage_key=start.stage_key,
        seed=start.seed,
        iteration=0,
        num_attempts=2 if settings.guided else 1,
        draws=settings.draws,
    )
    by_id = {task.task_id: task for task in tasks}
    chains = chains_of(
        player,
        groups,
        seed=start.seed,
        purpose="critic_report",
        max_feedback_tokens=start.config.prompt.max_feedback_tokens,
        stop_at_success=False,
    )
    play = partial(player.play, on_finish=lambda _: start.stop_if_asked())
    rollouts = play(chains.first(), then=chains.after)
    audited = [r for r in rollouts if r.draw == 0 and r.reward is not None]
    continuations = Continuations(start.stage_key, start.seed, "critic_report")
    played = play(continuations.of_all(audited, by_id, settings.num_continuations))
    siblings = play_siblings(
        play,
        [r for r in audited if not r.guided and r.task_id in with_siblings and r.steps],
        by_id,
        continuations,
        num_continuations=settings.num_continuations,
        first_draw=settings.num_continuations,
    )
    return rollouts + played + siblings


def audit_data(
    start: Start, rollouts: Sequence[Rollout], values: dict[str, np.ndarray], tasks: Sequence[Task]
) -> AuditData:
    """Returns the audited states as arrays: prediction, counts, the solver's V*; maybe none at all."""
    environment = ENVIRONMENTS[start.config.tasks.environment]
    style = environment.style(start.config.prompt.style, thinking=start.config.prompt.thinking)
    by_id = {task.task_id: task for task in tasks}
    whole = [r for r in rollouts if r.kind == "whole" and r.rollout_id in values]
    rewards = rewards_of(rollouts, values)
    rows = []
    for rollout in whole:
        task = by_id[rollout.task_id]
        optimal = environment.solver_value(
            task, rollout.seed, [style.parse(step.text) for step in rollout.steps]
        )
        for place, step in enumerate(rollout.steps):
            counts = rewards.get(StateRef(rollout.rollout_id, step.step_index, rollout.context), [])
            if len(counts) < 2:
                continue
            rows.append(
                (
                    rollout.rollout_id,
                    step.step_index,
                    rollout.context,
                    task.task_id,
                    task.cluster,
                    task.level,
                    task.split,
                    step.token_start / rollout.max_response_tokens,
                    values[rollout.rollout_id][place],
                    sum(counts),
                    len(counts),
                    optimal[place],
                )
            )
    names = [f.name for f in fields(AuditData) if f.name != "rollouts"]
    columns = {name: np.array([row[place] for row in rows]) for place, name in enumerate(names)}
    return AuditData(
        **columns,
        rollouts=tuple(
            AuditRollout(
                rollout_id=r.rollout_id,
                task_id=r.task_id,
                context=r.context,
                reward=r.reward,
                level=by_id[r.task_id].level,
                split=by_id[r.task_id].split,
                values=tuple(float(v) for v in values[r.rollout_id]),
                texts=tuple(step.text for step in r.steps),
                statuses=tuple(step.verifier_status for step in r.steps),
                messages=tuple(step.verifier_message for step in r.steps),
                cluster=by_id[r.task_id].cluster,
            )
            for r in whole
        ),
    )


def check_audited(audit: AuditData, rollouts: Sequence[Rollout]) -> None:
    """Raises ArtifactError, with what was played and what could be used of it, if no bare state was audited.

    Args:
        audit: of the rollouts.
        rollouts: everything that was played.
    """
    if "bare" in set(audit.context.tolist()):
        return
    whole = [r for r in rollouts if r.kind == "whole" and not r.guided]
    graded = [r for r in whole if r.reward is not None]
    ids = {r.rollout_id for r in whole}
    fresh = [r for r in rollouts if r.kind != "whole" and r.parent_rollout_ids[0] in ids]
    with_step, told = sum(bool(r.steps) for r in whole), sum(r.reward is not None for r in fresh)
    idle = bool(graded) and not any(r.steps for r in graded)
    raise ArtifactError(
        "the audit has no bare state with two graded continuations, so nothing to judge the critic by: of "
        f"{len(whole)} bare rollouts {len(graded)} could be graded and {with_step} have a step; of "
        f"{len(fresh)} continuations {told} could be graded. "
        + (
            "Next: a starting policy that acts (make sft), or more sampling.max_response_tokens"
            if idle
            else "Next: remove what the environment fails at (env_status in critic_report/shards/rollouts), "
            "then make critic_report SET=--repair, which tries those tasks again"
        ),
        code=ExitCode.QUALITY if idle else ExitCode.FAILED_ITEMS,
    )


def make(start: Start[Config], work: tuple[list[Sequence[Task]], list[Sequence[Rollout]]]) -> None:
    """Plays the audit, a shard of tasks at a time, then measures and judges."""
    settings = start.config.critic_report
    shards, fitted_shards = work
    tasks = [task for shard in shards for task in shard]
    fitted = [rollout for shard in fitted_shards for rollout in shard]
    policy = policy_of(start)
    critic = load_critic(start.config, start.inputs["critic"].path("critic"))
    player = make_player(start.config, policy)
    critic.check_matches(
        tokenizer_digest=policy.tokenizer_digest,
        label_policy_digest=player.settings.policy_digest,
        temperature=player.settings.temperature,
        max_response_tokens=player.settings.max_response_tokens,
    )
    with_siblings = sibling_tasks(start, tasks)
    fit_tasks = {task.task_id: task for task in tasks_of_split(start, "train")} if fitted else {}
    for shard in start.shards.to_do():
        if shard.index < len(shards):
            rollouts = play_audit(start, player, shards[shard.index], with_siblings)
        else:
            rollouts = play_fitted(start, player, fitted_shards[shard.index - len(shards)], fit_tasks)
        ungraded = {r.task_id for r in rollouts if r.reward is None}
        failed = {"infra_error": len(ungraded)} if ungraded else {}
        start.shards.commit(
            shard.index,
            {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)},
            done=len(shard.item_ids) - len(ungraded),
            failed=failed,
        )
    rollouts = rollouts_from(start.shards.table("rollouts"), start.shards.table("steps"))
    whole = [r for r in rollouts if r.kind == "whole" and r.reward is not None and r.steps]
    values = {r.rollout_id: v for r, v in zip(whole, critic.values(whole), strict=True)}
    audit = audit_data(start, rollouts, values, tasks)
    check_audited(audit, rollouts)
    rows = [
        (r.rollout_id, step.step_index, r.context, critic.digest, float(v))
        for r in whole
        for step, v in zip(r.steps, values[r.rollout_id], strict=True)
    ]
    by_id = {task.task_id: task for task in tasks}
    siblings = None
    if settings.sibling_sets:
        siblings = measured_siblings(
            rollouts,
            {r.rollout_id: r for r in whole},
            critic.values,
            {task.task_id: task.cluster for task in tasks},
        )
    probed = None
    if settings.probe_rollouts:
        probed = probe(
            start.config.tasks.environment,
            player,
            critic,
            [r for r in whole if r.draw == 0],
            values,
            by_id,
            num_rollouts=settings.probe_rollouts,
        )
    known = None
    if fitted:
        own = {r.rollout_id: v for r, v in zip(fitted, critic.values(fitted), strict=True)}
        known = audit_data(start, [*fitted, *rollouts], own, list(fit_tasks.values()))
    report = build_report(
        audit,
        converged=critic.contract.converged,
        policy_digest=player.settings.policy_digest,
        critic_digest=critic.digest,
        evaluations=json.loads(start.inputs["critic"].path("critic/evaluations.json").read_text()),
        labels_report=start.inputs["labels"].report,
        fit_report=start.inputs["critic"].report,
        judged_contexts=("bare", "guided") if settings.guided else ("bare",),
        num_resamples=settings.bootstrap,
        seed=start.seed,
        num_sample_rollouts=settings.num_sample_rollouts,
        min_advantage_correlation=settings.min_advantage_correlation,
        max_calibration_excess=settings.max_calibration_excess,
        siblings=siblings,
        probed=probed,
        max_probe_rise=settings.max_probe_rise,
        judge_probes=settings.judge_probes,
        fitted=known,
    )
    start.output("gate.json").write_text(json.dumps(report["gate"], indent=1, sort_keys=True) + "\n")
    start.output("report.html", volatile=True).write_text(report_page(report), encoding="utf-8")
    start.finish(
        more_tables=((VALUES, values_table(rows)),), report=report, verdict={"passed": report["passed"]}
    )
    start.say(report["opening"])
