"""The actor's body: iterations from the last checkpoint on, and refreshes of the critic between them."""

from dataclasses import replace
from pathlib import Path

from critics.drift.state import DriftState
from pipeline.artifacts.metrics import read_metrics
from pipeline.artifacts.signals import StopRequested
from pipeline.columns import LOOKS
from pipeline.errors import ArtifactError
from pipeline.models.policy import load_policy, weights_digest
from pipeline.processes.worker import WorkerDiedError
from pipeline.runner import Start
from pipeline.tables import looks_table
from pipeline.types import Rollout
from stages.actor import Work
from stages.settings import Config
from stages.wiring.actor_others import others_of
from stages.wiring.actor_report import actor_page, actor_report
from stages.wiring.cards import serve_folder, write_actor_card
from stages.wiring.inputs import rollouts_of
from stages.wiring.iteration import Iterations
from stages.wiring.learner import ActorState, held
from stages.wiring.refresh import critic_folder, first_gate, policy_folder, refreshed
from stages.wiring.refusals import check_critic, override_words, stamp_of
from stages.wiring.safety_stops import refuse_unsafe
from stages.wiring.sampling import PARTS, Sampling, first_try, strip_of
from stages.wiring.time_split import time_split
from stages.wiring.watch import Watch


def make(start: Start[Config], work: Work) -> None:
    """Trains until all iterations are done; whenever the watch asks for it, makes a new critic in between."""
    if work.stamp is not None and (words := override_words(work.stamp)):
        start.say(words)
    state = ActorState(work.credit.initial_state(), DriftState.before(work.rules))
    if found := start.checkpoints.latest():
        state = ActorState.of_json(found[1])
        _refuse_unsafe(start, state)
    while True:
        state, policy, looks = _trained(start, work, state, found[0] if found else None)
        if policy is None:
            break
        drift = refreshed(state.drift, start.config, *policy, work.contexts, start.say, start.stop_if_asked)
        state, found = replace(state, drift=drift), start.checkpoints.latest()
    stamp, gate, credit = work.stamp, first_gate(start, state.drift), start.config.actor.credit
    if stamp is None and gate is not None and credit.mode == "v_dapo":  # nobody had it when this was planned
        stamp = stamp_of(gate, work.contexts, credit.on_weak_critic)
    history = read_metrics(start.folder / "metrics.jsonl")
    report = actor_report(
        history,
        planned=start.shards.plan.estimate["updates"],
        refreshes=state.drift.refresh_runs,
        refused_refreshes=state.drift.refused_runs,
        critic_gate=stamp,
        last_look=first_try(looks),
    ) | {"time": time_split(history)}
    others = others_of(start.run_dir, start.inputs, start.seed, start.config.actor.evaluate_tasks)
    start.output("report.html", volatile=True).write_text(actor_page(report, others), encoding="utf-8")
    start.finish(report=report, more_tables=((LOOKS, looks_table(looks)),))


def _trained(
    start: Start[Config], work: Work, state: ActorState, checkpoint: Path | None
) -> tuple[ActorState, tuple[Path, str] | None, list[Rollout]]:
    """Returns the state after the last iteration, and a look; or before one that wants a critic, of whom."""
    settings = start.config.actor
    of_sft = start.inputs["sft"].path("policy")
    policy = load_policy(start.inputs["stored"].path("policy") if "stored" in start.inputs else of_sft)
    by_value = settings.task_order == "near_half"
    critic = critic_folder(start.run_dir, state.drift.refresh_runs, has_own=settings.reads_critic)
    with held(
        start.config,
        policy,
        start.log_folder,
        credit=work.credit,
        critic=critic if work.credit.needs_values or by_value else None,
        checkpoint=checkpoint,
        stored=rollouts_of(start.inputs["rollouts"]) if settings.reads_rollouts and not checkpoint else (),
    ) as learner:
        watch = None
        if learner.critic is not None:
            judged = load_policy(of_sft) if "stored" in start.inputs else policy  # it is sft's critic
            check_critic(
                learner.critic,
                start.config,
                contexts=work.contexts,
                tokenizer_digest=policy.tokenizer_digest,
                label_policy_digest=state.drift.critic_policy or judged.policy_digest,
            )
            by_id = {task.task_id: task for task in work.tasks}
            watch = Watch(learner.critic, work.rules, by_id, start.seed, start.say, state.drift)
        sampling = Sampling(
            tasks=work.tasks,
            val=work.val[: settings.evaluate_tasks],
            chain=settings.chain,
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            seed=start.config.run.sampling_seed,
            stage_key=start.stage_key,
            item_done=start.shards.item_done,
            start_values=watch.start_values if watch is not None and by_value else None,
            strip=strip_of(settings.guided, work.tasks, policy.tokenizer, start.shards, state.iterations),
        )
        iterations = Iterations(
            learner=learner,
            sampling=learner.pace.timed(sampling, **PARTS),
            watch=watch,
            credit=work.credit,
            settings=settings,
            shards=learner.pace.timed(start.shards, commit="commit"),
            log=start.metrics,
            show=start.samples,
            half_precision=start.config.half_precision,
        )
        with start.progress(settings.num_iterations, "iterations", state.iterations) as advance:
            while state.iterations < settings.num_iterations and not state.drift.wants_refresh:
                began = learner.trainer.num_updates
                try:
                    start.stop_if_asked()
                    state = iterations.next(state)
                    began = learner.trainer.num_updates
                    _refuse_unsafe(start, state)  # with actor.stops=false it goes on from what is saved
                except (StopRequested, ArtifactError) as ended:
                    learner.team.hands.close()  # what is in flight is dropped, and its memory is free
                    if learner.trainer.num_updates == began and not isinstance(ended, WorkerDiedError):
                        learner.save(start.checkpoints, state)  # weights and state are of the same moment
                    raise
                last = state.iterations == settings.num_iterations or state.drift.wants_refresh
                if last or state.iterations % settings.checkpoint_every == 0:
                    learner.save(start.checkpoints, state)
                advance(1)
        if state.iterations < settings.num_iterations:
            digest = weights_digest(learner.trainer.weights())
            folder = policy_folder(start.run_dir, state.iterations, digest)
            learner.trainer.export(folder)
            serve_folder(start, folder, policy.tokenizer)
            return state, (folder, digest), []
        folder = start.output("actor")
        learner.trainer.export(folder)
        serve_folder(start, folder, policy.tokenizer)
        gate, updates = first_gate(start, state.drift), learner.trainer.num_updates
        write_actor_card(start, folder, credit=work.credit, num_updates=updates, gate=gate)
        return state, None, iterations.last_look(state.iterations)


def _refuse_unsafe(start: Start[Config], state: ActorState) -> None:
    if start.config.actor.stops:
        history, done = read_metrics(start.folder / "metrics.jsonl"), state.iterations
        refuse_unsafe([line for line in history if line.get("iteration", done) < done])
