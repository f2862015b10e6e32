"""How far a stage is, how fast, how long it will take: a bar on a terminal, elsewhere a line at times."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

PLAIN_SECONDS = 10.0


class Progress:
    """A context manager; its `advance(n)` counts work done beyond what earlier starts did, `initial`."""

    def __init__(self, console: Console, description: str, total: int, initial: int = 0) -> None:
        self.console = console
        self.description = description
        self.total = total
        self.count = self._initial = initial
        self._began = self._spoke = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
        self._bar = Bar(*columns, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.add_task(self.description, total=self.total, completed=self.count, facts=self.facts())
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, number: int = 1) -> None:
        """Counts `number` more as done."""
        self.set(self.count + number)

    __call__ = advance

    def set(self, count: int) -> None:
        """Sets how many are done."""
        self.count = count
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=count, facts=self.facts())
        elif time.monotonic() - self._spoke >= PLAIN_SECONDS:
            self._spoke = time.monotonic()
            line = f"{self.description}: {self.facts()}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

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
    minutes, rest = divmod(max(0, round(seconds)), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
