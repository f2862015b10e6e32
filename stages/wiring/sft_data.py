"""What sft trains on: demonstrated episodes as token ids, in an order that follows from the seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from env.catalog import ENVIRONMENTS
from env.play.demonstrations import Demonstration, demonstrate
from pipeline.artifacts.runner import Start
from pipeline.ids import seed_of
from pipeline.tables import tasks_from
from pipeline.types import Task
from stages.settings import Sft

NOISE = 0.2
"""Share of random acts of the noisy demonstrators (start value)."""


def tasks_to_demonstrate(start: Start, train: list[Task]) -> list[Task]:
    """Returns the training tasks, or throwaway ones of companies without a held-out company's name."""
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


def play_demonstrations(start: Start, train: list[Task], tokenizer: Any = None) -> list[Demonstration]:
    """Returns the demonstrated episodes, in order.

    Args:
        start: of the sft stage.
        train: training tasks.
        tokenizer: of the base, whose added tokens no text from outside a policy may hold; a tokenizer of its
            own, trained on these episodes, adds only what every style breaks.

    Raises:
        ConfigError: the tokenizer does not go with the style.
    """
    settings: Sft = start.config.sft
    environment = ENVIRONMENTS[start.config.tasks.environment]
    tasks = tasks_to_demonstrate(start, train)
    prompt = start.config.prompt
    style = environment.style(prompt.style, tokenizer, thinking=prompt.thinking)
    demonstrations = []
    with start.progress(settings.num_demonstrations, "demonstrations") as advance:
        for i in range(settings.num_demonstrations):
            start.stop_if_asked()
            demonstrations.append(
                demonstrate(
                    environment,
                    tasks[i % len(tasks)],
                    style=style,
                    shares=settings.shares,
                    guided_share=settings.guided_share,
                    noise=NOISE,
                    verbosity=prompt.verbosity,
                    seed=seed_of(start.seed, "sft", i),
                    thoughts=settings.thoughts,
                )
            )
            advance(1)
    return demonstrations


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


def rows_of_update(num_rows: int, batch_rows: int, update: int, seed: int) -> list[int]:
    """Returns which rows an update trains on: a pure function of (seed, update).

    An epoch is a fresh shuffle cut into whole batches. No row comes twice in it; the last `num_rows %
    batch_rows` of the shuffle are left out, other ones in each epoch.
    """
    per_epoch = max(1, num_rows // batch_rows)
    epoch, place = divmod(update, per_epoch)
    order = np.random.default_rng(seed_of(seed, "sft order", epoch)).permutation(num_rows)
    return [int(i) for i in order[place * batch_rows : (place + 1) * batch_rows]]
