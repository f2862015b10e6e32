"""Where the time goes."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Where time goes. A part that lies in another one does not count for that one too."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._open: list[str] = []
        self._since = now()
        self._spent = defaultdict[str, float](float)

    @contextmanager
    def at(self, part: str) -> Iterator[None]:
        """Counts what passes inside for a part."""
        self._turn()
        self._open.append(part)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def lap(self) -> dict[str, float]:
        """Returns the seconds of each part since the last lap; `other` is what belongs to none."""
        self._turn()
        spent, self._spent = self._spent, defaultdict(float)
        return dict(spent)

    def _turn(self) -> None:
        now = self._now()
        self._spent[self._open[-1] if self._open else "other"] += now - self._since
        self._since = now
