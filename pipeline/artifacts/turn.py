"""Tries again for a stage that another process holds, as long as there is something to wait for."""

import time
from collections.abc import Callable
from pathlib import Path

from pipeline.artifacts.lock import holder, names
from pipeline.errors import ArtifactError, ExitCode

PAUSE = 0.5
"""Seconds between two looks at what another process does."""
MAX_ABSENT = 20
"""Looks at a folder that is not there; while it is set aside it is gone for a moment."""
ASKING_SECONDS = 1800.0
"""How long who holds a stage may take to ask for help: it plans, perhaps after a start of its own."""


class Turn:
    """One wait for a stage, told once."""

    def __init__(self, folder: Path, tell: Callable[[str], None], look: Callable[[], None]) -> None:
        self._folder, self._tell, self._look = folder, tell, look
        self._began, self._absent, self._told = time.monotonic(), 0, False

    def wait(self, error: Exception, until: str, seconds: float | None = None) -> None:
        """Pauses after a try that has failed by `error`; `until` says what is waited for.

        Raises it if the folder stays away, and ArtifactError (LOCKED) after so many seconds.
        """
        self._absent = self._absent + 1 if isinstance(error, FileNotFoundError) else 0
        if self._absent > MAX_ABSENT:
            raise error
        if not self._absent and not self._told:
            self._told = True
            lease = holder(self._folder)
            self._tell(
                f"{names([lease]) if lease else 'a process'} holds {self._folder}; waits until it {until}"
            )
        if seconds is not None and time.monotonic() - self._began > seconds:
            said = f"In {seconds:.0f} s this one waited until it {until}, and it has not"
            raise ArtifactError(f"{error}. {said}", code=ExitCode.LOCKED) from None
        self._look()
        time.sleep(PAUSE)
