"""Work that threads do side by side, because it leaves the interpreter alone: digests, files."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pipeline.hardware import usable_cores

S = TypeVar("S")
T = TypeVar("T")

MOST_THREADS = 16
"""Digests of so many keep up with what memory and disks give."""


def in_threads(work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Yields `work(item)` of each item, in their order, on as many threads as there are cores.

    Two items a thread are drawn ahead and no more, so what is drawn late is held late. What `work` raises is
    raised at its place, and nothing else is begun then.
    """
    threads = min(usable_cores(), MOST_THREADS)
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
