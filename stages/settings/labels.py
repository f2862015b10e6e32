"""What is known of step values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.settings import Section


class Labels(Section):
    """What is known of step values."""

    num_continuations: int = Field(8, ge=0, description="n fresh continuations of a chosen state")
    max_states: int | None = Field(
        None, ge=1, description="cap on states that get continuations; null is none"
    )
    guided_share: float = Field(
        0.3, ge=0, le=1, description="share of those states that lie in a guided context"
    )
    kappa: float = Field(2.0, ge=0, description="pseudo-counts given to the recovery model")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens that continuations may take: fewer states are chosen, by what they are expected "
        "to take, and no shard is begun once they are spent; with engine.overlap_shards the choice alone "
        "bounds them. null is no bound",
    )
    target: Literal["soft", "monte_carlo", "td", "td_lambda", "outcome_dense", "rule_decay"] = Field(
        "soft",
        description="what the critic is fitted to: counts with pseudo-counts, or a rule without counts: of "
        "R, with the critic's own values (td, td_lambda) or located errors (rule_decay)",
    )
    granularity: Literal["binary", "step", "detailed"] = Field(
        "detailed", description="what pseudo-counts know of located errors: nothing, that one was, which"
    )
