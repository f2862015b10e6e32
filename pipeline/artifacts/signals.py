"""Asked to stop: a signal sets a flag, and the work ends at its next safe place; a second ends it at once.

A process that only helps with a stage ends before the rest of the stage's body is done.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from pipeline.errors import ExitCode

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


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
        """Handles TERM, INT, USR1 and HUP while inside, then restores; a no-op outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.signal(number, self._handle) for number in _heeded()}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
            _tell(b"stopping at the next safe place; a second signal stops at once\n")
        elif number != signal.SIGHUP:  # a terminal that closes says so twice: by its shell and by the kernel
            try:
                _tell(b"second signal: stopping at once; what was committed stays\n")
            finally:
                os._exit(ExitCode.STOPPED)


def end_while_loading() -> None:
    """Makes a signal end the process with 75 until a StopFlag is installed: nothing has begun by then."""
    for number in _heeded():
        signal.signal(number, lambda *_: sys.exit(ExitCode.STOPPED))


def _heeded() -> list[signal.Signals]:
    """Returns the signals to handle; under nohup a terminal may close."""
    return [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


def _tell(line: bytes) -> None:
    """Writes to standard error, if it is open: the descriptor is another file's else."""
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError):  # a Ctrl-C ends `| tee` first; what is raised here ends any code
            os.write(2, line)


def stop_if_asked() -> None:
    """Raises StopRequested in a stage's process that got a signal: for long waits far from its flag."""
    flag = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(flag, StopFlag):
        flag.raise_if_set()
