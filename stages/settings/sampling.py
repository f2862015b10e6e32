"""How the policy is sampled, and what it is prompted with: the same in every stage."""

from __future__ import annotations

from typing import Literal

from pipeline.settings import Section, setting


class Sampling(Section):
    """How a policy is sampled: from its whole distribution at temperature 1, since ratios are taken of it."""

    max_response_tokens: int = setting(512, ge=1, description="budget of an episode, replies included")


class Prompt(Section):
    """What a policy is prompted with."""

    style: str | None = setting(
        None,
        description="a style of the environment; null: its first. phone has compact (lines for tiny models) "
        "and full (Qwen3's tool calls, for chat models)",
    )
    thinking: bool = setting(
        False,
        description="full: Qwen3 may think before each answer, within max_response_tokens; else each answer "
        "opens with an empty <think> block, as enable_thinking=False writes it",
    )
    verbosity: Literal["binary", "observed", "corrective"] = setting(
        "observed", description="what feedback on a failed attempt tells", advanced=True
    )
    max_feedback_tokens: int = setting(
        1024, ge=1, description="cap on feedback in a prompt; the oldest goes first"
    )


class Chain(Section):
    """How the attempts of a group follow each other."""

    num_attempts: int = setting(
        4, ge=1, description="rounds: attempt k sees feedback on failed attempts 0..k-1"
    )
    draws: int = setting(2, ge=1, description="rollouts of each attempt")
    feedback_free_share: float = setting(0.3, ge=0, le=1, description="share of groups that are one bare set")
    feedback_free_draws: int = setting(8, ge=1, description="rollouts of a bare set")

    @property
    def rollouts_per_group(self) -> float:
        """Rollouts of a group at most, as a mean."""
        bare = self.feedback_free_share * self.feedback_free_draws
        return bare + (1 - self.feedback_free_share) * self.num_attempts * self.draws
