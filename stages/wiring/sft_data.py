"""What sft trains on: demonstrated episodes as token ids, in an order that follows from the seed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from env.catalog import offer_of
from env.offer import EnvironmentOffer
from env.play.demonstrations import Demonstration, demonstrate
from pipeline.artifacts.runner import Start
from pipeline.errors import ConfigError
from pipeline.ids import seed_of
from pipeline.types import Task
from stages.settings import Sft
from stages.wiring.inputs import tasks_by_id

NOISE = 0.2
"""Share of random acts of the noisy demonstrators (start value)."""


def tasks_to_demonstrate(start: Start, train: list[Task]) -> list[Task]:
    """Returns the training tasks, or throwaway ones that share no cluster with held-out tasks."""
    settings: Sft = start.config.sft
    if not settings.practice_tasks:
        return train
    offer = offer_of(start.config.tasks.environment)
    if offer.demonstrators is None or offer.demonstrators.practice_tasks is None:
        raise ConfigError(
            f"sft.practice_tasks = {settings.practice_tasks}, but the environment {offer.name} makes no "
            "throwaway tasks; set it to 0 to demonstrate on the training tasks"
        )
    own = {task.cluster for task in train}
    held_out = {task.cluster for task in tasks_by_id(start).values()} - own
    return offer.demonstrators.practice_tasks(
        start.config.tasks, settings.practice_tasks, start.seed, held_out
    )


def shares_of(settings: Sft, offer: EnvironmentOffer) -> Mapping[str, float]:
    """Returns which scripted policies demonstrate, and how often; raises ConfigError if there are none."""
    offer.check_policies(settings.shares or ())
    return settings.shares or (offer.demonstrators.shares if offer.demonstrators else {})


def play_demonstrations(start: Start, train: list[Task], tokenizer: Any = None) -> list[Demonstration]:
    """Returns the demonstrated episodes, in order; no text from outside may hold added tokens of the base's.

    A tokenizer that is trained on these episodes adds only what every style breaks.
    """
    settings: Sft = start.config.sft
    offer = offer_of(start.config.tasks.environment)
    shares, demonstrators = shares_of(settings, offer), offer.demonstrators
    assert demonstrators is not None  # else there are no shares
    tasks = tasks_to_demonstrate(start, train)
    prompt = start.config.prompt
    style = offer.style(prompt.style, tokenizer, thinking=prompt.thinking)
    played = []
    with start.progress(settings.num_demonstrations, "demonstrations") as advance:
        for i in range(settings.num_demonstrations):
            start.stop_if_asked()
            demonstration = demonstrate(
                demonstrators,
                lambda: offer.make_env(start.config.tasks, prompt.verbosity),
                tasks[i % len(tasks)],
                style=style,
                shares=shares,
                guided_share=settings.guided_share,
                noise=NOISE,
                seed=seed_of(start.seed, "sft", i),
                thoughts=settings.thoughts,
            )
            played.append(demonstration)
            advance(1)
    return played


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

    An epoch is a fresh shuffle cut into whole batches; what is left over differs from epoch to epoch.
    """
    per_epoch = max(1, num_rows // batch_rows)
    epoch, place = divmod(update, per_epoch)
    order = np.random.default_rng(seed_of(seed, "sft order", epoch)).permutation(num_rows)
    return [int(i) for i in order[place * batch_rows : (place + 1) * batch_rows]]
