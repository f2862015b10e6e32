"""Feedback-guided rollouts of the starting policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.settings import Section
from stages.settings.sampling import Chain, Sampling


class Rollouts(Section):
    """Feedback-guided rollouts of the starting policy."""

    chain: Chain = Chain()
    sampling: Sampling = Sampling()
    verbosity: Literal["binary", "observed", "corrective"] = Field("observed", description="of rule feedback")
    style: Literal["compact", "full"] = Field(
        "compact",
        description="prompt style: compact lines for tiny models, full for chat models (Qwen3's tool calls)",
    )
    num_tasks: int | None = Field(None, ge=1, description="training tasks to use; null is all")
    groups_per_shard: int = Field(64, ge=1, description="groups that are committed together")
