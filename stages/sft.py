"""Makes the starting policy: a tiny Qwen3 and its tokenizer, from demonstrations of mixed quality.

Demonstrations are scripted episodes on training tasks; loss on the demonstrator's messages only. A share
carries earlier failed attempts with their feedback. An 8B base model needs no such stage.

    make sft CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from env.catalog import ENVIRONMENTS
from env.demonstrations import Demonstration, demonstrate
from pipeline.failpoints import failpoint
from pipeline.ids import seed_of
from pipeline.runner import Stage, Start, run_stage
from pipeline.stopping import StopRequested
from pipeline.tables import tasks_from
from pipeline.types import Task
from stages.backends import limit_threads, make_trainer
from stages.rollouts import tasks_of_split
from stages.settings import Config, Sft


def learning_rate(done: int, settings: Sft) -> float:
    """Returns the rate of the next update: linear warm-up, then cosine to a tenth of the peak."""
    if done < settings.warmup_updates:
        return settings.learning_rate * (done + 1) / settings.warmup_updates
    left = (done - settings.warmup_updates) / max(1, settings.num_updates - settings.warmup_updates)
    return settings.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, left))))


def rows_of_update(num_rows: int, batch_rows: int, update: int, seed: int) -> list[int]:
    """Returns which rows an update trains on: a pure function of (seed, update).

    An epoch is a fresh shuffle cut into whole batches. No row comes twice in it; the last `num_rows %
    batch_rows` of the shuffle are left out, other ones in each epoch.
    """
    per_epoch = max(1, num_rows // batch_rows)
    epoch, place = divmod(update, per_epoch)
    order = np.random.default_rng(seed_of(seed, "sft order", epoch)).permutation(num_rows)
    return [int(i) for i in order[place * batch_rows : (place + 1) * batch_rows]]


def encode(
    tokenizer: object, demonstration: Demonstration, context_weight: float
) -> tuple[list[int], list[float]]:
    """Returns token ids and loss weights, piece by piece as a player would encode them."""
    ids: list[int] = []
    mask: list[float] = []
    for text, is_trained in demonstration.pieces:
        piece = tokenizer.encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
        ids += piece
        mask += [1.0 if is_trained else context_weight] * len(piece)
    return ids, mask


def tasks_to_demonstrate(start: Start, train: list[Task]) -> list[Task]:
    """Returns the training tasks, or throwaway ones whose companies have no held-out company's name."""
    settings: Sft = start.config.sft
    if not settings.practice_tasks:
        return train
    own = {task.cluster for task in train}
    held_out = {task.cluster for task in tasks_from(start.inputs["tasks"].table("tasks"))} - own
    return ENVIRONMENTS[start.config.tasks.environment].practice_tasks(
        settings.practice_tasks,
        level_shares=start.config.tasks.level_shares,
        seed=start.seed,
        held_out=held_out,
    )


def success_by_policy(demonstrations: Sequence[Demonstration]) -> dict[str, dict[str, float]]:
    """Returns how many demonstrations each scripted policy gave and how many of them succeeded."""
    names = sorted({d.policy for d in demonstrations})
    return {
        name: {
            "demonstrations": float(len(own := [d.success for d in demonstrations if d.policy == name])),
            "success": float(np.mean(own)),
        }
        for name in names
    }


def make(start: Start) -> None:
    """Plays the demonstrations, trains tokenizer and model on them, writes the policy."""
    settings: Sft = start.config.sft
    environment = ENVIRONMENTS[start.config.tasks.environment]
    train = tasks_of_split(start, "train")
    environment.check_policies(settings.shares, "sft.shares")
    style = environment.style(start.config.rollouts.style)
    start.plan(
        [[f"update-{i:06d}" for i in range(settings.num_updates)]],
        tables=(),
        unit="updates",
        estimate={
            "demonstrations": settings.num_demonstrations,
            "rows": settings.num_updates * settings.batch_rows,
        },
    )
    import torch

    from pipeline.batches import sft_rows
    from pipeline.losses import sft_loss
    from pipeline.models import make_tiny_model, save_policy, train_tokenizer

    limit_threads(start.config)
    tasks = tasks_to_demonstrate(start, train)
    with start.progress(settings.num_demonstrations, "demonstrations") as advance:
        demonstrations = []
        for i in range(settings.num_demonstrations):
            start.stop_if_asked()
            demonstrations.append(
                demonstrate(
                    environment,
                    tasks[i % len(tasks)],
                    style=style,
                    shares=settings.shares,
                    guided_share=settings.guided_share,
                    noise=settings.noise,
                    verbosity=start.config.rollouts.verbosity,
                    seed=seed_of(start.seed, "sft", i),
                )
            )
            advance(1)
    folder = start.output("policy")
    texts = ["".join(text for text, _ in demonstration.pieces) for demonstration in demonstrations]
    tokenizer = train_tokenizer(texts, settings.model.vocab_size, folder, environment.style().template)
    encoded = [encode(tokenizer, demonstration, settings.context_weight) for demonstration in demonstrations]
    torch.manual_seed(seed_of(start.seed, "sft weights") % 2**32)
    model = make_tiny_model(settings.model, tokenizer)
    trainer = make_trainer(
        start.config,
        model,
        head="policy",
        learning_rate=lambda done: learning_rate(done, settings),
        weight_decay=settings.weight_decay,
    )
    if found := start.checkpoints.latest():
        trainer.load_checkpoint(found[0])

    def save() -> None:
        start.checkpoints.save(trainer.num_updates, trainer.save_checkpoint, {})

    with start.progress(settings.num_updates, "updates", initial=trainer.num_updates) as advance:
        while trainer.num_updates < settings.num_updates:
            try:
                start.stop_if_asked()
            except StopRequested:
                save()
                raise
            chosen = rows_of_update(len(encoded), settings.batch_rows, trainer.num_updates, start.seed)
            rows = sft_rows([encoded[i][0] for i in chosen], [encoded[i][1] for i in chosen])
            failpoint("sft.update.before")
            metrics = trainer.update(rows, sft_loss)
            failpoint("sft.update.after")
            start.metrics({"update": trainer.num_updates, **metrics})
            if (
                trainer.num_updates % settings.checkpoint_every == 0
                or trainer.num_updates == settings.num_updates
            ):
                save()
            advance(1)
    save_policy(model, tokenizer, folder)
    lengths = [len(ids) for ids, _ in encoded]
    start.finish(
        done=trainer.num_updates,
        report={
            "parameters": sum(p.numel() for p in model.parameters()),
            "demonstrations": success_by_policy(demonstrations),
            "tokens_mean": float(np.mean(lengths)),
            "tokens_max": max(lengths),
        },
    )


STAGE = Stage(
    name="sft",
    code_version=1,
    inputs=lambda config: ("tasks",),
    sections=(
        "sft",
        "training",
        "tasks.environment",
        "tasks.level_shares",
        "rollouts.style",
        "rollouts.verbosity",
    ),
    make=make,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
