"""How a policy is sampled, and how attempts follow each other."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from pipeline.settings import Section


class Sampling(Section):
    """How a policy is sampled where something is trained on it: from the whole distribution."""

    temperature: float = Field(1.0, ge=0, description="0 is greedy, in evaluation only")
    max_response_tokens: int = Field(512, ge=1, description="budget of an episode, replies included")

    @model_validator(mode="before")
    @classmethod
    def _is_not_truncated(cls, given: Any) -> Any:
        truncated = sorted({"top_p", "top_k"}.difference(cls.model_fields).intersection(given))
        if truncated:
            raise ValueError(
                f"{', '.join(truncated)}: what is trained on is sampled from the whole distribution, since "
                "its log-probabilities enter importance ratios. Remove it here; evaluation.sampling knows it"
            )
        return given


class EvaluationSampling(Sampling):
    """How a policy is sampled where it is only measured."""

    top_p: float = Field(1.0, gt=0, le=1, description="nucleus; 1 keeps every token")
    top_k: int = Field(-1, ge=-1, description="likeliest tokens kept; -1 keeps all")


class Chain(Section):
    """How the attempts of a group follow each other."""

    num_attempts: int = Field(
        4, ge=1, description="rounds: attempt k sees feedback on failed attempts 0..k-1"
    )
    draws: int = Field(2, ge=1, description="rollouts of each attempt")
    feedback_free_share: float = Field(0.3, ge=0, le=1, description="share of groups that are one bare set")
    feedback_free_draws: int = Field(8, ge=1, description="rollouts of a bare set")
    max_feedback_tokens: int = Field(
        1024, ge=1, description="cap on feedback in a prompt; the oldest goes first"
    )
