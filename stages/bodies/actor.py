"""Alternates fresh rollouts and updates of the actor, and watches its critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from env.catalog import ENVIRONMENTS
from env.play.chains import plan_groups, play_chains
from pipeline.artifacts.failpoints import failpoint
from pipeline.artifacts.metrics import read_metrics
from pipeline.artifacts.runner import Start
from pipeline.artifacts.signals import StopRequested
from pipeline.credit import Credit
from pipeline.credit.batch import Batch, ValuesOf
from pipeline.engines.gpu_sharing import Turns
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import seed_of
from pipeline.models.policy import weights_digest
from pipeline.tables import rollouts_from, rollouts_table, steps_table, values_table
from pipeline.training.losses import policy_loss
from pipeline.training.policy_update import engine_trainer_gap, logprob_gap, logprobs_of, update_rows
from pipeline.types import Rollout, Task
from stages.settings import Actor, Config
from stages.settings.engine import shares_gpus
from stages.wiring.actor_page import actor_page, actor_report
from stages.wiring.build import (
    Player,
    load_critic,
    make_engine,
    make_player,
    make_trainer,
)
from stages.wiring.cards import actor_card, write_beside
from stages.wiring.inputs import policy_of
from stages.wiring.refresh import refresh
from stages.wiring.refusals import (
    check_made_for,
    computes_roughly,
    contexts_of,
    override_words,
    refuse_disagreement,
    refuse_failing_environment,
)
from stages.wiring.safety_stops import refuse_unsafe
from stages.wiring.watch import Watch

MAX_EMPTY_UPDATES = 3  # running; then there is nothing left to learn from, or something is broken
NUM_PROBES = 8  # fixed prompts on which engine and trainer are compared after every hand-off


def collect(
    start: Start,
    player: Player,
    credit: Credit,
    values_of: ValuesOf | None,
    tasks: list[Task],
    iteration: int,
) -> Batch:
    """Returns an iteration's rollouts, sampled on until enough tasks are kept or the refills are used up."""
    settings: Actor = start.config.actor
    wanted = settings.tasks_per_update * settings.updates_per_iteration
    ranked = sorted(tasks, key=lambda task: seed_of(start.seed, "actor order", iteration, task.task_id))
    rollouts: list[Rollout] = []
    batch = Batch.of(rollouts, values_of, credit)
    for _ in range(1 + (settings.max_refills if credit.dynamic_sampling else 0)):
        chosen, ranked = ranked[: wanted - batch.num_kept_tasks], ranked[wanted - batch.num_kept_tasks :]
        if not chosen:
            break
        groups = plan_groups(
            chosen,
            stage_key=start.stage_key,
            seed=start.seed,
            iteration=iteration,
            num_attempts=settings.chain.num_attempts,
            draws=settings.chain.draws,
            feedback_free_share=settings.chain.feedback_free_share,
            feedback_free_draws=settings.chain.feedback_free_draws,
        )
        rollouts += play_chains(
            player,
            groups,
            seed=start.seed,
            purpose="actor",
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            stop_at_success=False,
            on_finish=lambda _: start.shards.item_done(),
        )[0]
        batch = Batch.of(rollouts, values_of, credit)
    return batch


def look_at_val(start: Start, player: Player, tasks: list[Task], iteration: int) -> float:
    """Returns first-try success on some val tasks: a point of the learning curve; nothing is chosen by it.

    Raises:
        ArtifactError: too many could not be graded; that is no failure of the actor.
    """
    groups = plan_groups(
        tasks[: start.config.actor.evaluate_tasks],
        stage_key="val",
        seed=start.seed,
        iteration=iteration,
        num_attempts=1,
        draws=1,
    )
    rollouts, _ = play_chains(
        player,
        groups,
        seed=start.seed,
        purpose="look",
        max_feedback_tokens=start.config.prompt.max_feedback_tokens,
        stop_at_success=True,
        on_finish=lambda _: start.shards.item_done(),
    )
    refuse_failing_environment(rollouts, iteration)
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    return sum(rewards) / len(rewards)


def commit(start: Start, iteration: int, batch: Batch, checked: Sequence[Rollout], whose_values: str) -> None:
    """Commits an iteration's rollouts, steps and critic values as one shard, before any update uses them.

    Args:
        start: the stage's.
        iteration: number of the shard.
        batch: what is trained on, and surplus.
        checked: continuations of a paid drift check.
        whose_values: `Watch.whose_values`, nothing without a critic.
    """
    contexts = {rollout.rollout_id: rollout.context for rollout in batch.rollouts}
    values = [
        (rollout_id, step_index, contexts[rollout_id], whose_values, float(value))
        for rollout_id, steps in (batch.values or {}).items()
        for step_index, value in enumerate(steps)
    ]
    tables = {
        "rollouts": rollouts_table([*batch.rollouts, *checked]),
        "steps": steps_table([*batch.rollouts, *checked]),
        "values": values_table(values),
    }
    start.shards.commit(iteration, tables, done=1, supersede=start.shards.is_committed(iteration))


def recorded(start: Start, iteration: int, policy_digest: str) -> list[Rollout] | None:
    """Returns an iteration's committed rollouts if these very weights sampled them, else None."""
    if not start.shards.is_committed(iteration):
        return None
    rollouts = rollouts_from(start.shards.read(iteration, "rollouts"), start.shards.read(iteration, "steps"))
    return rollouts if all(rollout.policy_digest == policy_digest for rollout in rollouts) else None


def history_until(start: Start, done: int) -> list[dict[str, Any]]:
    """Returns what was measured in the first `done` iterations."""
    history = read_metrics(start.folder / "metrics.jsonl")
    return [line for line in history if line.get("iteration", done) < done]


def make(start: Start[Config], work: tuple[Credit, dict[str, Any] | None, list[Task], list[Task]]) -> None:
    """Alternates fresh rollouts and updates, from the last checkpoint on."""
    settings = start.config.actor
    credit, stamp, tasks, val = work
    planned = settings.num_iterations * settings.updates_per_iteration
    if stamp is not None and (words := override_words(stamp)):
        start.say(words)

    policy = policy_of(start)
    critic = None
    if credit.needs_critic:
        critic = load_critic(start.config, start.inputs["critic"].path("critic"))
    if critic is not None:
        check_made_for(
            critic,
            contexts=contexts_of(settings.chain),
            max_response_tokens=start.config.sampling.max_response_tokens,
            family=start.config.tasks.environment,
            splitter=ENVIRONMENTS[start.config.tasks.environment].splitter,
            tokenizer_digest=policy.tokenizer_digest,
            label_policy_digest=policy.policy_digest,
        )
    turns = Turns(shares_gpus(start.config.engine))
    trainer = turns.trainer(
        lambda: make_trainer(
            start.config,
            policy.model,
            head="policy",
            learning_rate=lambda done: (
                settings.learning_rate * min(1.0, (done + 1) / max(1, settings.warmup_updates))
            ),
        )
    )
    reference = None
    if credit.loss.kl > 0:
        reference = turns.trainer(
            lambda: make_trainer(start.config, replace(policy).model, head="policy")  # weights of its own
        )
    credit_state, first, empty_running = credit.initial_state(), 0, 0
    if found := start.checkpoints.latest():
        trainer.load_checkpoint(found[0])
        credit_state, first = found[1]["credit"], found[1]["iterations"]
        empty_running = found[1].get("empty_running", 0)
        refuse_unsafe(history_until(start, first), settings.stops)
    engine_policy = replace(policy)
    engine = turns.engine(lambda: make_engine(start.config, engine_policy))
    watch = Watch(start, critic, tasks) if critic is not None else None
    if found and watch is not None:
        watch.restore(found[1]["drift"])
    values_of = watch.values if watch is not None else None

    def save(iterations: int) -> None:
        state = {
            "iterations": iterations,
            "credit": credit_state,
            "drift": watch.state if watch else None,
            "empty_running": empty_running,
        }
        start.checkpoints.save(trainer.num_updates, trainer.save_checkpoint, state)

    with start.progress(settings.num_iterations, "iterations", initial=first) as advance:
        for iteration in range(first, settings.num_iterations):
            weights = trainer.weights()
            engine.load_weights(weights, weights_digest(weights))
            del weights  # on a GPU they would hold what `offload` is to free
            player = make_player(start.config, engine_policy, engine=engine)
            rollouts = recorded(start, iteration, engine.policy_digest)
            now, began = credit, trainer.num_updates
            checked: list[Rollout] = []
            try:
                start.stop_if_asked()
                if watch is not None:
                    if watch.wants_refresh:
                        watch.refreshed(
                            refresh(start, trainer, player, iteration),
                            engine.policy_digest,
                            policy.tokenizer_digest,
                        )
                    now = watch.credit(credit)
                prompts = [player.prompt_of(task) for task in val[:NUM_PROBES]]
                refuse_disagreement(
                    engine_trainer_gap(engine, trainer, prompts, player.stop_token_id),
                    start.config,
                    iteration,
                )
                if rollouts is not None:
                    checked = [rollout for rollout in rollouts if rollout.kind != "whole"]
                    batch = Batch.of([r for r in rollouts if r.kind == "whole"], values_of, now)
                else:
                    batch = collect(start, player, now, values_of, tasks, iteration)
                    refuse_failing_environment(batch.rollouts, iteration)
                    if watch is not None and watch.is_due(began, now):
                        checked = watch.play(player, batch.rollouts)
                        refuse_failing_environment(checked, iteration)
                    commit(start, iteration, batch, checked, watch.whose_values if watch is not None else "")
                    start.samples(began, batch.rollouts)
                look: dict[str, Any] = {"iteration": iteration, **batch.metrics()}
                if iteration % settings.evaluate_every == 0:  # the weights that sampled this iteration
                    look["val/first_try"] = look_at_val(start, player, val, iteration)
            except StopRequested:
                engine.close()  # what is in flight is dropped, and its memory is free
                save(iteration)  # no update of this iteration has been made
                raise
            gap = logprob_gap(trainer, batch.rollouts[:16])
            refuse_disagreement(gap, start.config, iteration)
            updates = batch.updates(
                settings.updates_per_iteration, max_uniform_share=now.max_uniform_share, seed=start.seed
            )
            trained_on = [r for update in updates for r in update.rollouts]
            old_logprobs = logprobs_of(trainer, trained_on) if computes_roughly(start.config) else None
            for update in updates:
                empty_running = 0 if update.sets else empty_running + 1
                if empty_running == MAX_EMPTY_UPDATES:
                    raise ArtifactError(
                        f"iteration {iteration}: {empty_running} updates running had nothing to train on: no "
                        "baseline set was kept, since all rollouts of a set succeed, or all fail. Next: "
                        "tasks of another difficulty, a better starting policy, or more draws (actor.chain)",
                        code=ExitCode.QUALITY,
                    )
                if update.sets:
                    failpoint("actor.update.before")
                    rows, metrics, credit_state = update_rows(
                        update,
                        credit=now,
                        state=credit_state,
                        old_logprobs=old_logprobs,
                        ref_logprobs=logprobs_of(reference, update.rollouts) if reference else None,
                    )
                    metrics |= trainer.update(rows, policy_loss(now.loss))
                    failpoint("actor.update.after")
                    start.metrics({"iteration": iteration, "update": trainer.num_updates, **metrics})
                    if watch is not None:
                        watch.moved(metrics)
            if watch is not None:
                look |= watch.after(batch.rollouts, batch.values or {}, checked, began, now)
            start.metrics({**look, "engine/logprob_gap": gap})
            done = iteration + 1
            try:
                refuse_unsafe(history_until(start, done), settings.stops)
            except ArtifactError:
                save(done)  # with other limits it goes on from here
                raise
            if (
                done % settings.checkpoint_every == 0
                or done == settings.num_iterations
                or (watch is not None and watch.wants_refresh)  # which takes long and may be stopped
            ):
                save(done)
            advance(1)

    folder = start.output("actor")
    trainer.export(folder)
    card = actor_card(start, folder, credit=credit, num_updates=trainer.num_updates)
    write_beside(start, folder, policy.tokenizer, card)
    report = actor_report(
        read_metrics(start.folder / "metrics.jsonl"),
        trainer.num_updates,
        planned,
        refreshes=watch.state["refresh_runs"] if watch is not None else (),
        refused_refreshes=watch.state["refused_runs"] if watch is not None else (),
        critic_gate=stamp,
    )
    start.output("report.html", volatile=True).write_text(actor_page(report), encoding="utf-8")
    start.finish(report=report)
