"""Trains the starting policy on demonstrations, or takes over a base as it is."""

import math
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from env.chat.style import ChatStyle
from env.play.demonstrations import Demonstration
from pipeline.artifacts.signals import StopRequested
from pipeline.ids import seed_of
from pipeline.models.folder import weight_files
from pipeline.models.policy import load_policy
from pipeline.models.tiny import make_tiny_model, train_tokenizer
from pipeline.processes.failpoints import failpoint
from pipeline.rows import LeftOut
from pipeline.runner import Start
from pipeline.training.losses import sft_loss
from pipeline.training.rows import sft_rows
from pipeline.types import Task
from stages.settings import Config, Sft
from stages.settings.sft import VOCAB_SIZE
from stages.wiring.build import limit_threads, make_policy_trainer, make_trainer, pace_of, tiny_shape
from stages.wiring.left_out import tell_left_out
from stages.wiring.sft_data import (
    encode,
    play_demonstrations,
    refuse_other_lost,
    rows_of_update,
    that_fit,
)
from stages.wiring.sft_recorded import recorded_demonstrations

WEIGHT_DECAY = 0.01  # AdamW's, of matrices


def learning_rate(done: int, settings: Sft) -> float:
    """Returns the rate of the next update: linear warm-up, then cosine to a tenth of the peak."""
    warmup = settings.warmup_updates
    if done < warmup:
        return settings.learning_rate * (done + 1) / warmup
    left = (done - warmup) / max(1, settings.num_updates - warmup)
    return settings.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, left))))


def adopt(start: Start[Config], base: Path) -> None:
    """Takes a base as it is: the policy is a copy, so nothing that happens to the base can change it."""
    folder = start.output("policy")
    folder.mkdir(parents=True, exist_ok=True)
    weights = weight_files(base)
    for path in sorted(base.iterdir()):
        if path in weights or path.suffix in (".json", ".jinja", ".model", ".txt"):
            shutil.copy(path, folder / path.name)
    start.finish(done=1, report={"base": str(base)})


def untrained(
    start: Start[Config], demonstrations: Sequence[Demonstration], style: ChatStyle, folder: Path
) -> tuple[Any, Callable[..., Any]]:
    """Returns the base's tokenizer, or a tiny one, which the folder gets, and what makes a trainer of it."""
    if (base := start.config.sft.base) is not None:
        policy = load_policy(Path(base))
        policy.tokenizer.save_pretrained(folder)
        return policy.tokenizer, partial(make_policy_trainer, start.config, policy)
    texts = ["".join(text for text, _ in demonstration.pieces) for demonstration in demonstrations]
    tokenizer = train_tokenizer(texts, VOCAB_SIZE, folder, style.template, style.special_tokens)
    torch.manual_seed(seed_of(start.seed, "sft weights") % 2**32)
    model = make_tiny_model(tiny_shape(start.config), tokenizer)
    return tokenizer, partial(make_trainer, start.config, model, head="policy")


def make(start: Start[Config], train: list[Task]) -> None:
    """Plays the demonstrations, trains tokenizer and model on them, writes the policy."""
    settings = start.config.sft
    base = None if settings.base is None else Path(settings.base)
    if base is not None and settings.num_updates == 0:
        adopt(start, base)
        return
    limit_threads(start.config)
    style = start.config.style()
    of_data, lost = dict[str, Any](), list[LeftOut]()
    if settings.data:
        demonstrations, of_data["data"] = recorded_demonstrations(start)
    else:
        demonstrations, lost = play_demonstrations(start, train)
        of_data["left_out"] = tell_left_out(start, lost)
    folder = start.output("policy")
    tokenizer, trainer_of = untrained(start, demonstrations, style, folder)
    encoded = [encode(tokenizer, demonstration, settings.context_weight) for demonstration in demonstrations]
    encoded = that_fit(start, encoded)
    pace = pace_of(start.config)
    made = trainer_of(learning_rate=lambda done: learning_rate(done, settings), weight_decay=WEIGHT_DECAY)
    trainer = pace.trainer(made, made.model.config)
    if found := start.checkpoints.latest():
        refuse_other_lost(lost, found[1].get("lost", []))
        trainer.load_checkpoint(found[0])

    def save() -> None:
        start.checkpoints.save(
            trainer.num_updates, trainer.save_checkpoint, {"lost": [one.row for one in lost]}
        )

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
            start.metrics({"update": trainer.num_updates, **metrics, **pace.lap()})
            done = trainer.num_updates
            if done == settings.num_updates or done % settings.checkpoint_every == 0:
                save()
            advance(1)
    trainer.export(folder)
    trainer.close()
    lengths = [len(ids) for ids, _ in encoded]
    report = {
        "parameters": sum(p.numel() for p in made.model.parameters()),
        "success": float(np.mean([demonstration.success for demonstration in demonstrations])),
        "tokens_mean": float(np.mean(lengths)),
        "tokens_max": max(lengths),
        "too_long": len(demonstrations) - len(encoded),
        "template_digest": style.digest,
    } | of_data
    start.finish(done=trainer.num_updates, report=report)
