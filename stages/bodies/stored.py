"""The stored phase's body: epochs over stored rollouts until those that are held out gain no more."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from pipeline.errors import ArtifactError
from pipeline.models.policy import Policy, load_policy
from pipeline.runner import Start
from pipeline.training.stored.objective import effective_size, held_out_gain, make_objective
from pipeline.training.stored.stopping import PATIENCE, best_look, latest_as_good, probabilities
from pipeline.training.stored.v_dapo import with_own_logprobs
from pipeline.types import Rollout
from stages.settings import Config
from stages.stored import Work
from stages.wiring.build import load_critic, make_policy_trainer
from stages.wiring.cards import serve_folder
from stages.wiring.epochs import train_epochs
from stages.wiring.inputs import rollouts_of
from stages.wiring.recorders_critic import outcome_stamp
from stages.wiring.refusals import check_critic
from stages.wiring.sft_data import rows_of_update
from stages.wiring.stored_data import Examples, examples_of
from stages.wiring.stored_report import stored_page


def make(start: Start[Config], work: Work | None) -> None:
    """Trains from sft's policy on, looks at what is held out after each epoch; writes the weights it kept."""
    if work is None:
        for shard in start.shards.to_do():
            start.shards.commit(shard.index, {}, done=0, skipped={"objective_none": 1})
        start.finish(report={"objective": "none"})
        return
    settings = start.config.stored
    measure = "gain" if settings.objective.judged_by_loss else "probability"
    policy = load_policy(start.inputs["sft"].path("policy"))
    examples, stamp = _examples(start, work, policy)
    objective = make_objective(**settings.objective.model_dump(include={"kind", "temperature"}))
    trainer = make_policy_trainer(start.config, policy, learning_rate=lambda done: settings.learning_rate)
    half = start.config.half_precision
    if settings.objective.estimates or (half and settings.objective.judged_by_loss):
        # By the weights that it starts from, so before any checkpoint's.
        own = partial(with_own_logprobs, trainer, everyone=half)
        examples = replace(examples, train=own(examples.train), held_out=own(examples.held_out))

    def train(places: Sequence[int]) -> dict[str, float]:
        advantages = [examples.advantages[i] for i in places]
        return trainer.update(objective.rows([examples.train[i] for i in places], advantages), objective.loss)

    def look(epoch: int, update: int) -> list[float]:
        if settings.objective.judged_by_loss:
            rows = objective.rows(examples.held_out, examples.held_out_advantages)
            found = [held_out_gain(trainer, rows, objective.loss)]
            words = "minus the loss of held-out rollouts is"
        else:
            found = probabilities(trainer, examples.held_out)
            words = "tokens of held-out successes have probability"
        start.metrics({"update": update, f"held_out/{measure}": fmean(found)})
        start.say(f"epoch {epoch}: {words} {fmean(found):.4f}")
        return found

    def keep(looks: Sequence[list[float]]) -> int:
        judged = settings.objective.judged_by_loss
        return best_look([fmean(each) for each in looks]) if judged else latest_as_good(looks)

    trained = train_epochs(
        start,
        trainer,
        num_rows=len(examples.train),
        batch_rows=settings.batch_rows,
        max_epochs=settings.max_epochs,
        patience=PATIENCE,
        train=train,
        look=look,
        keep=keep,
    )
    serve_folder(start, trained.folder, policy.tokenizer)
    tokens = [r.num_trainable_tokens for r in examples.train]

    def rows_of(update: int) -> list[int]:
        return rows_of_update(len(examples.train), settings.batch_rows, update, start.seed)

    report = {
        "objective": settings.objective.kind,
        "rows": examples.counts,
        "tokens": sum(tokens),
        "effective_tokens": effective_size(objective.rows(examples.train, examples.advantages)),
        "updates": trained.kept,
        "updates_taken": trained.num_updates,
        "tokens_trained": sum(tokens[i] for u in range(trained.num_updates) for i in rows_of(u)),
        "measure": measure,
        "looks": [
            {"epoch": epoch, "update": epoch * trained.per_epoch, measure: fmean(found)}
            for epoch, found in enumerate(trained.looks)
        ],
        "ended_by_itself": trained.ended_by_itself,
        "critic_gate": stamp,
    }
    start.output("report.html", volatile=True).write_text(stored_page(report), encoding="utf-8")
    start.finish(done=1, report=report)


def _examples(start: Start[Config], work: Work, policy: Policy) -> tuple[Examples, dict[str, Any] | None]:
    """Returns what is trained on, and what the report says of the critic.

    Raises ArtifactError for rollouts or a critic of another policy, and for a recorder's critic that is weak.
    """
    objective, bare, stamp = start.config.stored.objective, work.material.bare, work.stamp
    others = {r.policy_digest for r in bare if r.has_logprobs or not objective.estimates}
    if (others := others - {policy.policy_digest}) and not objective.strips:
        raise ArtifactError(
            f"stored.objective.kind = {objective.kind} takes ratios to the stored log-probabilities, but "
            f"those are of {', '.join(sorted(d[:12] for d in others))}, not of sft's policy "
            f"{policy.policy_digest[:12]}. Next: rollouts of that policy, or the kind likelihood"
        )

    def values_of(rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        nonlocal stamp
        critic = load_critic(start.config, start.inputs["critic"].path("critic"))
        # Not the buffer of a round, which has sessions of other weeks too: the critic is of these alone.
        recorded = rollouts_of(start.inputs["rollouts"]) if start.config.has_recorders_critic else []
        check_critic(
            critic,
            start.config,
            contexts=("bare",),
            tokenizer_digest=policy.tokenizer_digest,
            label_policy_digest=recorded[0].policy_digest if recorded else policy.policy_digest,
        )
        if recorded:
            stamp = outcome_stamp(start, critic, recorded, work.material.tasks)
        values = critic.values(rollouts, work.material.parents)
        critic.close()
        return values

    return examples_of(start, work.material, values_of, policy.tokenizer), stamp
