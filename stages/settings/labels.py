"""What is known of step values."""

from __future__ import annotations

from typing import Literal

from pipeline.settings import Section, setting

EVIDENCE = "docs/results.md, critic quality: three seeds, a tiny model"


class Labels(Section):
    """What is known of step values."""

    target: Literal["outcome_dense", "soft", "monte_carlo", "td", "td_lambda", "rule_decay"] = setting(
        "outcome_dense",
        description="what the critic is fitted to: R at every state (outcome_dense) or at fixed turns "
        "(monte_carlo), counts of continuations (soft), the critic's own values (td, td_lambda), located "
        "errors (rule_decay)",
        source=f"{EVIDENCE}: within noise of soft at a tenth of its label tokens",
    )
    num_continuations: int = setting(
        0,
        ge=0,
        description="n fresh continuations of a chosen state, for soft targets, validation and more states "
        "to fit; 0 labels by outcomes alone",
        source=f"{EVIDENCE}: none are needed for outcome_dense",
    )
    max_states: int | None = setting(
        None, ge=1, description="cap on states that get continuations; null is none"
    )
    guided_share: float = setting(
        0.3, ge=0, le=1, description="share of those states that lie in a guided context"
    )
    max_tokens: int | None = setting(
        None,
        ge=1,
        description="tokens that continuations may take: fewer states are chosen, by what they are expected "
        "to take, and no shard is begun once they are spent; with engine.overlap_shards the choice alone "
        "bounds them. null is no bound",
        advanced=True,
    )
    kappa: float = setting(
        0.0,
        ge=0,
        description="soft: pseudo-counts given to the recovery model",
        source="beside fitted continuations they only flatten: docs/decisions",
        advanced=True,
    )
    granularity: Literal["binary", "step", "detailed"] = setting(
        "detailed",
        description="what pseudo-counts know of located errors: nothing, that one was, which",
        advanced=True,
    )
