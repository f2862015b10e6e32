"""How policies are prompted and sampled, and how much of them is played."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from env.solutions import Solutions
from pipeline.settings import Section, setting


class Sampling(Section):
    """How a policy is sampled: from its whole distribution at temperature 1, since ratios are taken of it."""

    max_response_tokens: int = setting(512, "budget of an episode, replies included", ge=1)


class Prompt(Section):
    """What a policy is prompted with."""

    style: str | None = setting(
        None,
        "a style of the environment; null: its first, for tiny models. full is Qwen3's, for chat models",
    )
    thinking: bool = setting(
        False,
        "full: Qwen3 may think before each answer, within max_response_tokens; else each answer opens with "
        "an empty <think> block, as enable_thinking=False writes it",
    )
    verbosity: Literal["binary", "observed", "corrective"] = setting(
        "observed", "what feedback on a failed attempt tells", advanced=True
    )
    max_feedback_tokens: int = setting(1024, "cap on feedback in a prompt; the oldest goes first", ge=1)


class Chain(Section):
    """How the attempts of a group follow each other."""

    num_attempts: int = setting(4, "rounds: attempt k sees feedback on failed attempts 0..k-1", ge=1)
    draws: int = setting(2, "rollouts of each attempt", ge=1)
    feedback_free_share: float = setting(0.3, "share of groups that are one bare set", ge=0, le=1)
    feedback_free_draws: int = setting(8, "rollouts of a bare set", ge=1)

    @property
    def has_feedback(self) -> bool:
        """Whether any attempt follows another."""
        return self.num_attempts > 1 and self.feedback_free_share < 1

    @property
    def has_pairs(self) -> bool:
        """Whether any set, the rollouts of one context and round, may have two."""
        free = self.feedback_free_share
        return (free < 1 and self.draws > 1) or (free > 0 and self.feedback_free_draws > 1)

    @property
    def rollouts_per_group(self) -> float:
        """Rollouts of a group at most, as a mean."""
        bare = self.feedback_free_share * self.feedback_free_draws
        return bare + (1 - self.feedback_free_share) * self.num_attempts * self.draws


class Rollouts(Section):
    """Feedback-guided rollouts of the starting policy, and recorded solutions beside them."""

    chain: Chain = Chain()
    num_tasks: int | None = setting(
        None, "training tasks to play; null is all, 0 none: recorded solutions alone", ge=0
    )
    solutions: Solutions | None = setting(
        None,
        "recorded solutions or sessions of training tasks, beside what is played (docs/own-tasks.md, "
        "docs/recorded.md)",
    )

    @model_validator(mode="after")
    def _has_something_to_make(self) -> Self:
        if self.solutions is None and self.num_tasks == 0:
            raise ValueError(
                "num_tasks = 0 plays nothing, and no rollouts.solutions are brought in. Next: more tasks, or "
                "a file or data set of solutions"
            )
        return self


class Evaluation(Section):
    """Starting policy beside actor, or what another stage made, on `run.held_out`."""

    num_attempts: ClassVar[int] = 2  # of the with-feedback measure
    draws: int = setting(4, "first tries of each task at temperature 1", ge=1)
    of: Literal["actor", "stored", "dpo"] = setting(
        "actor", "stage whose policy is set beside the starting policy, and is a round's candidate"
    )
