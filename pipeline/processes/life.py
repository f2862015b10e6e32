"""Signs of life of workers: they leave one after each piece of work, and who waits for them looks.

A process that hangs in a collective is still there, and a thread of it could say so for ever. So it is the
work that signs: a micro-batch, a tensor, a step of an engine. Signs lie in memory that both sides see: a
parent that reads no messages for a while holds nobody up.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pipeline.processes.nodes import Nodes

LIMITS = {"start": 1800.0, "load": 1800.0, "its first step": 1800.0, "a link": 120.0}
"""Seconds without a sign after which a worker counts as hung, by what it does.

An engine reads tens of GB, perhaps over a network, compiles kernels and captures graphs, some of it in its
first step, and says nothing meanwhile. Over a link to another node something comes twice a second.
"""
LIMIT = 600.0
"""The same for all else: the longest silent piece is a micro-batch, a tensor, or a step of an engine."""
TICK = 0.5  # seconds between two looks
_AWAKE = 5.0  # of the time between two looks, that counts at most
_FORM = struct.Struct("=qd40s")  # number of the last sign, its time, after what
_CALL = 1 << 32  # signs of a call, at most: where the next one's numbers begin


@dataclass(frozen=True, slots=True)
class Scope:
    """What holds for the workers of a start of a stage; without one, for those of tools and tests."""

    log_folder: Path | None = None  # of their output; None: kept as long as they live
    patience: float = 1.0  # times the limits
    nodes: "Nodes | None" = None  # further ones, that lend their ranks


_scope = Scope()


@contextmanager
def workers_of(scope: Scope) -> Iterator[None]:
    """Gives workers that are started inside a folder for logs, and those inside their time."""
    global _scope
    former, _scope = _scope, scope
    try:
        yield
    finally:
        _scope = former


def log_folder() -> Path | None:
    """Returns where workers keep their output."""
    return _scope.log_folder


def further_nodes() -> "Nodes | None":
    """Returns the nodes that lend their ranks to this start of a stage."""
    return _scope.nodes


def limit_of(doing: str) -> float:
    """Returns after how many seconds without a sign of life a worker that does this counts as hung."""
    return LIMITS.get(doing, LIMIT) * _scope.patience


class Sign(NamedTuple):
    """The last sign of life of a worker."""

    number: int  # higher than that of any before, and 0 if there was none
    time: float  # by the monotonic clock
    after: str  # which piece of work

    @property
    def place(self) -> str:
        """Which one it was: of the process, or of its call."""
        call, piece = divmod(self.number, _CALL)
        return f"number {piece} of call {call}" if call else f"number {piece}"


class Signs:
    """The memory in which a worker leaves its signs; the parent passes `descriptor` on to it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("vdapo-life")
        os.ftruncate(self.descriptor, _FORM.size)
        self._memory = mmap.mmap(self.descriptor, _FORM.size)

    def last(self) -> Sign:
        """Returns the last sign; number 0 before the first."""
        number, when, after = _FORM.unpack(self._memory[:])
        return Sign(number, when, after.rstrip(b"\0").decode("utf-8", "replace"))

    def close(self) -> None:
        """Closes this side's descriptor, once the worker has its own; the memory stays."""
        os.close(self.descriptor)


class LeavesSigns(Protocol):
    """What is known of a worker's signs: its memory, or what has come of it from another node."""

    def last(self) -> Sign:
        """Returns the last sign."""


class Silence:
    """How long none of some workers has given a sign of life.

    Only time in which this process looked counts, so not what passed while a scheduler had stopped
    both, or while results were used before more were asked for.
    """

    def __init__(self, signs: Sequence[LeavesSigns]) -> None:
        self._signs = signs
        self.begin()

    def begin(self) -> None:
        """Starts to count anew."""
        self._seconds, self._looked = 0.0, time.monotonic()
        self._seen = [signs.last().number for signs in self._signs]

    def seconds(self) -> float:
        """Returns how long it has lasted by now."""
        if [signs.last().number for signs in self._signs] != self._seen:
            self.begin()
        now = time.monotonic()
        self._seconds, self._looked = self._seconds + min(now - self._looked, _AWAKE), now
        return self._seconds


_mine: mmap.mmap | None = None
_number = 0


def take_signs(descriptor: int) -> None:
    """Makes this process leave its signs of life in its parent's memory."""
    global _mine
    _mine = mmap.mmap(descriptor, _FORM.size)
    os.close(descriptor)


def sign_of_life(after: str, *, call: bool = False) -> None:
    """Says that a piece of work is done, if this process is a worker; takes some microseconds.

    With a `call` pieces are counted anew: workers that are called together can be compared by them, whatever
    each did in the calls before.
    """
    global _number
    if _mine is not None:
        _number = (_number // _CALL + 1) * _CALL if call else _number + 1
        _mine[:] = _FORM.pack(_number, time.monotonic(), after.encode()[:40])
