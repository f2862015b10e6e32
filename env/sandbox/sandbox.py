"""The sandbox of a process: our functions on untrusted text, and untrusted programs, both confined."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from env.sandbox.guest_process import GuestProcess
from env.sandbox.host import Launcher, UnavailableError
from env.sandbox.outcome import Limits, Outcome
from env.sandbox.probe import MEANING, holes
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import JsonValue

WEAK = "VDAPO_WEAK_SANDBOX"
"""An environment variable; "accepted" accepts that this machine confines less than it should."""

_PRELOADED = """
    array ast base64 bisect calendar cmath collections.abc contextlib copy csv dataclasses datetime decimal
    enum fractions functools hashlib heapq inspect io itertools json math numbers operator pprint queue random
    re secrets statistics string struct textwrap threading time traceback types typing unicodedata zlib
"""
"""Modules of the standard library that programs use, so that none of them has to load them."""

_TRIED = ((), ("namespaces",), ("namespaces", "user"))
"""Walls that are left off, in the order in which it is tried what confines on this machine."""


class _Desk:
    """A launcher, replaced when it has died, and the process that answers calls of a module's functions."""

    def __init__(self, module: str, without: Sequence[str]) -> None:
        self._module, self._without = module, without
        self._launcher: Launcher | None = None
        self.worker: GuestProcess | None = None

    @property
    def is_broken(self) -> bool:
        """Whether its launcher has died."""
        return self._launcher is None or self._launcher.is_broken

    @property
    def walls(self) -> Sequence[str]:
        """The walls around its confined processes."""
        return () if self._launcher is None else self._launcher.walls

    def guest(self, first: dict[str, JsonValue], limits: Limits, *, is_asked: bool) -> GuestProcess | Outcome:
        """Returns a new confined process, the only one of this desk, or why the machine gives none."""
        for _ in range(2):
            try:
                return GuestProcess(self._ready_launcher(), first, limits, is_asked=is_asked)
            except UnavailableError as error:
                outcome = Outcome("unavailable", stderr=str(error))
        return outcome

    def _ready_launcher(self) -> Launcher:
        if self.worker is not None:
            self.worker.kill()
        if self._launcher is None or self._launcher.is_broken:
            self.close()
            preload = [] if self._module else _PRELOADED.split()
            self._launcher = Launcher([self._module] if self._module else [], preload, self._without)
        return self._launcher

    def close(self) -> None:
        """Ends its processes."""
        if self._launcher is not None:
            self._launcher.close()
        if self.worker is not None:
            self.worker.kill()
        self._launcher = self.worker = None


class Box:
    """One untrusted program at work in its own confined process, which can be asked things until it ends."""

    def __init__(self, guest: GuestProcess | Outcome) -> None:
        self._guest = guest

    def ask(self, message: JsonValue) -> Outcome:
        """Returns what the program delivers next, after `receive()` gave it the message.

        "ok" has the delivered value, and the program goes on. Any other status is its end, and further calls
        return it again; a program that ends without an answer has "raised". The clock of `Limits.seconds`
        runs only while it is asked, and starts anew each time: who asks often adds up `Outcome.seconds`.
        """
        return self._guest if isinstance(self._guest, Outcome) else self._guest.ask(message)


class Sandbox:
    """Confined processes, started when they are needed and replaced when they are killed.

    It may be used by several threads; each of them waits for its own outcome.

    Args:
        without: walls to leave off, for tests of what the others hold: "namespaces", "landlock", "seccomp",
            "user".

    Raises:
        ConfigError: this machine cannot confine them; docs/sandbox.md says what it takes.
    """

    def __init__(self, without: Collection[str] = ()) -> None:
        self._idle: dict[str, list[_Desk]] = defaultdict(list)  # of calls by module, of programs by ""
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._without: tuple[str, ...] = ()
        self.holes: list[str] = []  # what a confined process can do and should not; accepted if there are any
        self.level = self._look_for_a_level(without)

    def call(self, function: str, argument: JsonValue, limits: Limits) -> Outcome:
        """Returns what OUR function makes of untrusted text, in a confined worker that is reused.

        `function` is "module:name" of a function from one JSON value to one JSON value. Its module is
        imported before the worker is confined, and may not keep a state. It may parse texts, but not execute
        them: what a text did to the worker would wait there for the next one. A call that ends as "timeout",
        "memory", "output" or "crashed" is tried once more in a fresh worker, so these statuses mean: twice.
        Who grades makes them, and "unavailable", an infra_error.

        Raises:
            ConfigError: its module cannot be loaded.
        """
        outcome = self._call_once(function, argument, limits)
        return outcome if outcome.status in ("ok", "raised") else self._call_once(function, argument, limits)

    def run(self, program: str, argument: JsonValue, limits: Limits) -> Outcome:
        """Returns what came of UNTRUSTED Python source, run as `__main__` in a process that is never reused.

        The program's globals hold `argument` and `deliver(value)`; the JSON value delivered last is the
        outcome's. Nothing that it prints can be taken for one. What is delivered is the program's own word,
        never a verdict: what decides one, such as expected values, may be in neither program nor argument.
        Where a harness and a candidate share a program, the candidate can do all that the harness can.
        """
        first: dict[str, JsonValue] = {"program": program, "argument": argument}
        for _ in range(2):  # the second time if the launcher has died
            with self._desk() as desk:
                guest = desk.guest(first, limits, is_asked=False)
                outcome = guest if isinstance(guest, Outcome) else guest.finish()
                if not desk.is_broken:
                    break
        return outcome

    @contextmanager
    def open(self, program: str, argument: JsonValue, limits: Limits) -> Iterator[Box]:
        """Gives a box in which the program runs as in `run`, with `receive()` besides `deliver(value)`.

        `receive()` waits for the next message and returns it. The end of the context kills the program.
        """
        with self._desk() as desk:
            guest = desk.guest({"program": program, "argument": argument}, limits, is_asked=True)
            try:
                yield Box(guest)
            finally:
                if not isinstance(guest, Outcome):
                    guest.kill()

    def close(self) -> None:
        """Kills all of its processes that are not at work; idempotent."""
        if os.getpid() == self._pid:  # not what a forked process has inherited
            with self._lock:
                desks = [desk for idle in self._idle.values() for desk in idle]
                self._idle.clear()
            for desk in desks:
                desk.close()

    def _call_once(self, function: str, argument: JsonValue, limits: Limits) -> Outcome:
        module, _, name = function.partition(":")
        with self._desk(module) as desk:
            worker = desk.worker
            if worker is None or worker.over is not None or worker.limits.memory_mb != limits.memory_mb:
                new = desk.guest({"module": module}, limits, is_asked=True)
                if isinstance(new, Outcome):
                    return new
                worker = desk.worker = new
            worker.limits = limits
            return worker.ask([name, argument])

    @contextmanager
    def _desk(self, module: str = "") -> Iterator[_Desk]:
        """Gives a desk that nobody else has, an idle one if there is; of programs, if of no module."""
        with self._lock:
            idle = self._idle[module]
            desk = idle.pop() if idle else _Desk(module, self._without)
        try:
            yield desk
        except BaseException:
            desk.close()
            raise
        with self._lock:
            self._idle[module].append(desk)

    def _look_for_a_level(self, without: Collection[str]) -> int:
        """Returns 2 with namespaces, 1 without, 0 where attacks succeed and somebody has accepted that."""
        found: dict[tuple[str, ...], list[str]] = {}
        reasons: list[str] = []
        for off in _TRIED:
            self._without = (*without, *off)
            try:
                self.holes = found[self._without] = holes(self.run)
                with self._desk() as desk:
                    walls = desk.walls
                if "seccomp" not in walls:
                    self.holes.append("system calls are not filtered")
                if not self.holes:
                    return 2 if "namespaces" in walls else 1
                reasons += self.holes
            except UnavailableError as error:
                reasons.append(str(error))
            self.close()  # its launcher has these walls
        if found and os.environ.get(WEAK) == "accepted":
            self._without = min(found, key=lambda off: (MEANING["imports"] in found[off], len(found[off])))
            self.holes = found[self._without]
            return 0
        raise ConfigError(
            f"this machine ({os.uname().nodename}) cannot confine what a model wrote: "
            f"{'; '.join(dict.fromkeys(reasons))}. It takes "
            "Linux with seccomp, and with namespaces or Landlock. Next: allow them (docs/sandbox.md says how "
            f"in containers), run elsewhere, or set {WEAK}=accepted in the environment if nothing here can "
            "come to harm"
        )


_SHARED: dict[int, Sandbox] = {}
_SHARED_LOCK = threading.Lock()


def shared_sandbox() -> Sandbox:
    """Returns the sandbox of this process, made when first asked for; a forked process gets its own.

    Environments ask for it whenever they need it and keep no reference, so they can be pickled.
    """
    with _SHARED_LOCK:
        if os.getpid() not in _SHARED:
            _SHARED[os.getpid()] = sandbox = Sandbox()
            if sandbox.holes:
                print(f"vdapo: {WEAK}=accepted, and here {'; '.join(sandbox.holes)}", file=sys.stderr)
            atexit.register(sandbox.close)
        return _SHARED[os.getpid()]
