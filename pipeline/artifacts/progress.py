"""How far a stage is, how fast, how long it will take: a bar on a terminal, elsewhere a line at times."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

PLAIN_SECONDS = 10.0


class Progress:
    """A context manager; its `advance(n)` counts work done.

    Args:
        console: where to draw; a bar only if it is a terminal.
        description: what is counted, e.g. "rollouts".
        total: planned count.
        initial: of these, done by earlier starts: counted, but no part of the rate.
    """

    def __init__(self, console: Console, description: str, total: int, initial: int = 0) -> None:
        self.console = console
        self.description = description
        self.total = total
        self.count = self._initial = initial
        self._began = self._spoke = time.monotonic()
        self._counted = False
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        """Starts drawing."""
        self._began = self._spoke = time.monotonic()
        if self.console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task(self.description, total=self.total, facts="")
            self._bar.start()
            self.set(self.count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops drawing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, number: int = 1) -> None:
        """Counts `number` more as done."""
        self.set(self.count + number)

    __call__ = advance

    def set(self, count: int) -> None:
        """Sets how many are done."""
        self.count = count
        if not self._counted and time.monotonic() - self._began < 0.1:
            self._initial = count  # what is counted at once was done by an earlier start
        self._counted = True
        if self._bar is not None:
            self._bar.update(self._task, completed=count, facts=self.facts())
            return
        now = time.monotonic()
        if now - self._spoke >= PLAIN_SECONDS:
            self._spoke = now
            self.console.print(
                f"{self.description}: {self.facts()}", markup=False, highlight=False, soft_wrap=True
            )

    def facts(self) -> str:
        """Returns e.g. "120 of 480 (25 %), 3.1/s, 1 min 56 s left"."""
        seconds = time.monotonic() - self._began
        made = self.count - self._initial
        share = f" ({100 * self.count // self.total} %)" if self.total else ""
        text = f"{self.count} of {self.total}{share}"
        if made > 0 and seconds > 0:
            rate = made / seconds
            text += f", {rate:.3g}/s, {duration((self.total - self.count) / rate)} left"
        return text


def duration(seconds: float) -> str:
    """Returns seconds in words.

    Example:
        >>> duration(7384), duration(59.6), duration(75)
        ('2 h 3 min', '1 min 0 s', '1 min 15 s')
    """
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole} s"
