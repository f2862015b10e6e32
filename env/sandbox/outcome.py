"""What a confined process may use, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pydantic import JsonValue

Status = Literal["ok", "raised", "timeout", "memory", "output", "crashed", "unavailable"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one call or program may use; what goes over one is killed."""

    seconds: float = 2.0  # of wall clock, without the time it waited for a core of a busy machine
    memory_mb: int = 512  # of address space
    output_bytes: int = 65536  # of stdout and of stderr, each, and of the messages that it delivers


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call or a program ended, in plain data.

    `status` is one of:

    * ok: the function returned; the program ran to its end, or delivered the answer that a box waits for.
    * raised: an exception, `SystemExit` too; the end of its traceback is in `stderr`.
    * timeout: it used up `Limits.seconds`, computing, asleep or waiting for a message.
    * memory: it ended by MemoryError, that is, it reached `Limits.memory_mb`.
    * output: it wrote or delivered more than `Limits.output_bytes`.
    * crashed: it ended in another way than Python ends: a signal, `os._exit`, a broken channel.
    * unavailable: not its fault. The machine gave it no time or no process; the reward is null, never 0.
    """

    status: Status
    value: JsonValue = None  # what the function returned, or what the program delivered last
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0  # that count against the limit
