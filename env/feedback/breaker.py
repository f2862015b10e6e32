"""Patience with a server that fails: asks wait while one of them tries now and then, and not for ever."""

import sys
import threading
import time
from collections.abc import Callable

from env.feedback.failures import BUSY, CallError

FAILURES = 5
"""Tries in a row that fail before asks wait; a busy server's are none, since it says itself when to come."""
PROBE_SECONDS = 30.0
"""Between two tries of a server that fails, at most: at first they follow each other faster."""
PATIENCE_SECONDS = 600.0
"""Without an answer, then asks fail for good, until one is answered again."""
POLL_SECONDS = 0.2


class Breaker:
    """Closed while tries are answered; open after several in a row failed: then one ask at a time may try.

    Args:
        first_wait_s: before the first of these tries; the next ones wait as long again as it has lasted.
        pause: waits for so many seconds.
        clock: tells seconds.
    """

    def __init__(
        self,
        first_wait_s: float,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_wait_s, self._pause, self._clock = first_wait_s, pause, clock
        self._failures = 0  # in a row
        self._since: float | None = None  # when the first try failed since an answer
        self._next = 0.0  # when another one may be made
        self._prober: int | None = None  # the thread that makes it
        self._last = CallError("unreachable", "no try yet")
        self._lock = threading.Lock()

    def admit(self) -> None:
        """Returns once the caller may try; raises the CallError of a server that has failed for too long."""
        while not self._may_try():
            self._pause(POLL_SECONDS)

    def _may_try(self) -> bool:
        with self._lock:
            if self._failures < FAILURES:
                return True
            if self._prober is not None:
                return False
            if self._clock() >= self._next:
                self._prober = threading.get_ident()
                return True
            if self._has_lost_patience():
                detail = f"not sent: no answer for {PATIENCE_SECONDS:.0f} s ({self._last})"
                raise CallError(self._last.kind, detail, may_pass=False)
            return False

    def answered(self) -> None:
        """Takes in an answer, or another sign that the server works."""
        with self._lock:
            self._failures, self._since, self._prober = 0, None, None

    def failed(self, error: CallError) -> bool:
        """Takes in a failure that may pass; returns whether what was asked may be its cause.

        After too long a time without an answer the failure may not pass any more.
        """
        with self._lock:
            self._last, now = error, self._clock()
            self._since = now if self._since is None else self._since
            is_busy, is_probe = error.status == BUSY, self._prober == threading.get_ident()
            self._failures += not is_busy
            if is_probe or (self._failures == FAILURES and not is_busy):
                wait = min(PROBE_SECONDS, max(self._first_wait_s, now - self._since))
                self._prober, self._next = None, now + max(wait, error.retry_after)
                if not is_probe:
                    told = f"feedback: {error}. Asks wait for the server, {PATIENCE_SECONDS:.0f} s at most"
                    print(told, file=sys.stderr)
            error.may_pass = not self._has_lost_patience()
            return not error.is_down and self._failures < FAILURES

    def _has_lost_patience(self) -> bool:
        return self._since is not None and self._clock() - self._since >= PATIENCE_SECONDS
