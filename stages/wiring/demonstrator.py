"""Plays demonstrations, in this process or in one of its own that runs this file; it needs no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from env.catalog import offer_of
from env.chat.style import ChatStyle
from env.offer import EnvironmentOffer
from env.play.demonstrations import Demonstration, demonstrate
from env.play.guard import FailureError
from pipeline.ids import seed_of
from pipeline.processes.pool import serve
from pipeline.processes.worker import connect_to_parent
from pipeline.rows import LeftOut
from pipeline.types import Task
from stages.settings import Config, Sft

NOISE = 0.2
"""Share of random acts of the noisy demonstrators (start value)."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Demonstrations to play, one a task, from number `first` on; all that they are made of."""

    config: Config
    seed: int  # of the run
    first: int
    tasks: tuple[Task, ...]


def shares_of(settings: Sft, offer: EnvironmentOffer) -> Mapping[str, float]:
    """Returns which scripted policies demonstrate, and how often; raises ConfigError if there are none."""
    offer.check_policies(settings.shares or ())
    return settings.shares or (offer.demonstrators.shares if offer.demonstrators else {})


def play_lesson(lesson: Lesson, one_more: Callable[[], None]) -> list[Demonstration | LeftOut]:
    """Returns the demonstrations of a lesson, in order; calls `one_more` after each.

    One that an environment failed is left out, with the kind of failure.
    """
    settings, prompt, tasks = lesson.config.sft, lesson.config.prompt, lesson.config.tasks
    offer = offer_of(tasks.environment)
    assert offer.demonstrators is not None  # else there are no shares
    style = style_of(tasks.environment, prompt.style, prompt.thinking, settings.base)
    played = list[Demonstration | LeftOut]()
    for number, task in enumerate(lesson.tasks, lesson.first):
        try:
            demonstration = demonstrate(
                offer.demonstrators,
                lambda: offer.make_env(tasks, prompt.verbosity),
                task,
                style=style,
                shares=shares_of(settings, offer),
                guided_share=settings.guided_share,
                noise=NOISE,
                seed=seed_of(lesson.seed, "sft", number),
                follows_feedback=settings.follows_feedback,
                thoughts=settings.thoughts,
            )
            played.append(demonstration)
        except FailureError as failure:
            played.append(LeftOut("demonstrations", number, failure.kind, failure.detail))
        one_more()
    return played


@cache
def style_of(environment: str, name: str | None, thinking: bool, base: str | None) -> ChatStyle:
    """Returns a style in which no text from outside may hold added tokens of the base's tokenizer.

    A tokenizer that is trained on these episodes adds only what every style breaks.
    """
    tokenizer = None
    if base is not None:
        from pipeline.models.policy import load_tokenizer

        tokenizer = load_tokenizer(Path(base))
    return offer_of(environment).style(name, tokenizer, thinking=thinking)


def main() -> None:
    """Serves lessons."""
    serve(connect_to_parent(), play_lesson)


if __name__ == "__main__":
    main()
