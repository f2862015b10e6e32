"""Feedback-guided rollouts of the starting policy."""

from __future__ import annotations

from pipeline.settings import Section, setting
from stages.settings.sampling import Chain


class Rollouts(Section):
    """Feedback-guided rollouts of the starting policy."""

    chain: Chain = Chain()
    num_tasks: int | None = setting(None, ge=1, description="training tasks to use; null is all")
