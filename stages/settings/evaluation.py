"""Starting policy beside actor."""

from __future__ import annotations

from pipeline.settings import Section, setting


class Evaluation(Section):
    """Starting policy beside actor, on `run.held_out`."""

    draws: int = setting(4, ge=1, description="first tries of each task at temperature 1")
    num_attempts: int = setting(2, ge=1, description="attempts of the with-feedback measure")
