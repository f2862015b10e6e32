"""Starting policy beside actor."""

from __future__ import annotations

from pydantic import Field

from pipeline.settings import Section
from stages.settings.splits import HeldOutSplits


class Evaluation(Section):
    """Starting policy beside actor."""

    splits: HeldOutSplits = Field(
        ("val", "test_unseen_company"), min_length=1, description="held-out splits, each once"
    )
    draws: int = Field(4, ge=1, description="first tries of each task at temperature 1")
    num_attempts: int = Field(2, ge=1, description="attempts of the with-feedback measure")
    groups_per_shard: int = Field(100, ge=1, description="tasks that are committed together")
