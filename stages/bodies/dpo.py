"""The body of dpo: the reference's log-probabilities once, then epochs until the held-out loss rises."""

from typing import Any

from pipeline.models.policy import load_policy
from pipeline.runner import Start
from pipeline.tables import pairs_from, reference_from, reference_table
from pipeline.training.preference import dpo_loss, pair_logprobs, pair_rows, preference_measures
from pipeline.training.stored.stopping import best_look
from stages.settings import Config
from stages.wiring.build import make_policy_trainer
from stages.wiring.cards import serve_folder
from stages.wiring.dpo_report import dpo_page, dpo_report
from stages.wiring.epochs import train_epochs

PATIENCE = 1
"""Looks running without a lower held-out loss, after which training ends: a start value."""


def make(start: Start[Config], work: None) -> None:
    """Trains from the starting policy on, with a look at held-out pairs after each epoch; keeps the best."""
    settings = start.config.dpo
    source = start.inputs["stored" if "stored" in start.inputs else "sft"]
    policy = load_policy(source.path("policy"))
    pairs = pairs_from(start.inputs["preferences"].table("pairs"))
    trainer = make_policy_trainer(start.config, policy, learning_rate=lambda done: settings.learning_rate)
    by_id = {pair.pair_id: pair for pair in pairs}
    for shard in start.shards.to_do():  # before any update, so it is the reference that is asked
        some = pair_logprobs(trainer, [by_id[name] for name in shard.item_ids])
        rows = [(name, *sides) for name, sides in some.items()]
        start.shards.commit(shard.index, {"reference": reference_table(rows)}, done=len(rows))
    reference = reference_from(start.shards.table("reference"))
    training = [pair for pair in pairs if not pair.held_out]
    held_out = [pair for pair in pairs if pair.held_out]
    by_kind = {
        "all": held_out,
        "same_prompt": [pair for pair in held_out if pair.match == "prompt"],
        "other_prompts": [pair for pair in held_out if pair.match != "prompt"],
    }
    options = {"beta": settings.beta, "mu": settings.mu}
    loss = dpo_loss(**options)

    def look(epoch: int, update: int) -> dict[str, Any]:
        # Before any update the policy is its reference: what another batch rounds otherwise says nothing.
        now = pair_logprobs(trainer, held_out) if update else reference
        seen = {
            name: preference_measures(some, now, reference, **options) if some else None
            for name, some in by_kind.items()
        }
        of_all = seen["all"] or {}
        start.metrics({"update": update, **{f"held_out/{name}": number for name, number in of_all.items()}})
        start.say(f"epoch {epoch}: held-out pairs: {', '.join(f'{n} {x:.4f}' for n, x in of_all.items())}")
        return {"epoch": epoch, "update": update, **seen}

    trained = train_epochs(
        start,
        trainer,
        num_rows=len(training),
        batch_rows=settings.batch_pairs,
        max_epochs=settings.max_epochs,
        patience=PATIENCE,
        train=lambda places: trainer.update(pair_rows([training[i] for i in places], reference), loss),
        look=look,
        keep=lambda looks: best_look([-seen["all"]["loss"] for seen in looks]),
    )
    serve_folder(start, trained.folder, policy.tokenizer)
    report = dpo_report(pairs, trained, **options)
    start.output("report.html", volatile=True).write_text(dpo_page(report), encoding="utf-8")
    start.finish(report=report)
