"""The clock of a confined process: it stands still while that gets no core, or its judge is stopped."""

from __future__ import annotations

import time
from contextlib import suppress

STARVED = 10
"""Wall clock, in times of the limit, after which a process that was given no core is given up."""
TICK = 0.1
"""Seconds between two looks of who judges; so much of a stop, at most, counts as time of the process."""
ABSENT = 0.25
"""Seconds by which a look comes too late if who judges was stopped, or got no core itself (start value)."""


class Clock:
    """Seconds that a process used up since `start`: computing, asleep, or waiting for somebody else.

    A slow machine must not turn a right program into a wrong one, so time in the queue for a core does not
    count, as Linux tells it; elsewhere it does. What all threads computed counts, so a program cannot stop
    the clock by threads that compete with each other.

    Nor does time count in which nobody judged: then the whole job was suspended and continued, and a process
    that cannot stop its judge was stopped with it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._queue = self._cpu = 0.0  # as the kernel said last: it says nothing of a process that is gone
        self.start()

    def start(self) -> None:
        """Begins to count from zero."""
        self._wall = self._looked = time.monotonic()
        self._queued, self._computed = self._waited(), self._busy()

    def look(self, waited: float) -> None:
        """Leaves out what passed since the last look, if that is much more than who judges `waited`."""
        now = time.monotonic()
        absent = now - self._looked - waited
        self._wall += absent if absent > ABSENT else 0.0
        self._looked = now

    @property
    def wall(self) -> float:
        """Seconds of wall clock."""
        return time.monotonic() - self._wall

    @property
    def used(self) -> float:
        """Seconds that count."""
        return max(self.wall - (self._waited() - self._queued), self._busy() - self._computed)

    def _waited(self) -> float:
        with suppress(OSError, IndexError, ValueError), open(f"/proc/{self._pid}/schedstat", "rb") as file:
            self._queue = int(file.read().split()[1]) / 1e9
        return self._queue

    def _busy(self) -> float:
        with suppress(OSError):
            self._cpu = time.clock_gettime(~self._pid << 3 | 2)  # as Linux's clock_getcpuclockid names it
        return self._cpu
