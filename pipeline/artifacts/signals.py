"""Asked to stop: a signal sets a flag, and the work ends at its next safe place; a second ends it at once.

A process that only helps with a stage ends before the rest of the stage's body is done.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from pipeline.errors import ExitCode

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequested(BaseException):
    """Ends a stage early with exit code 75. A BaseException, so that no `except Exception` swallows it."""


class HelpEnded(BaseException):
    """Ends a helper's part of a stage: no shard is left that it could play, or the stage is over."""


class StopFlag:
    """Whether the process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def raise_if_set(self) -> None:
        """Raises StopRequested if a signal came."""
        if self.signal is not None:
            raise StopRequested(self.signal.name)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handles TERM, INT and USR1 while inside, then restores; a no-op outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            os.write(2, b"second signal: stopping at once; what was committed stays\n")
            os._exit(ExitCode.STOPPED)
        self.signal = signal.Signals(number)
        os.write(2, b"stopping at the next safe place; a second signal stops at once\n")


def stop_if_asked() -> None:
    """Raises StopRequested in a stage's process that got a signal: for long waits far from its flag."""
    flag = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(flag, StopFlag):
        flag.raise_if_set()
