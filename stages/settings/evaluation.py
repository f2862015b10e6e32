"""Starting policy beside actor."""

from __future__ import annotations

from pipeline.settings import Section, setting


class Evaluation(Section):
    """Starting policy beside actor, on `run.held_out`."""

    draws: int = setting(4, ge=1, description="first tries of each task at temperature 1")
