"""Who owns each slot of an engine: the request it serves, then the `cache_key` it stays bound to."""

import heapq
from collections.abc import Sequence

import numpy as np


class SlotOwners:
    """Slots that are free, taken, or idle: served out, but bound to a key.

    Args:
        cached: [slots] tokens with keys and values in each; set to 0 when a slot becomes free.
    """

    def __init__(self, cached: np.ndarray) -> None:
        self._cached = cached
        self._at_work: dict[int, str | None] = {}  # slot -> the key it is bound to
        self._idle: dict[str | None, int] = {}  # key -> its slot, least recently used first; None has none
        self._free = list(range(len(cached)))  # a heap: low slots first keep the rows at work together

    @property
    def available(self) -> int:
        """Slots that can be taken."""
        return len(self._free) + len(self._idle)

    def take(self, keys: Sequence[str | None]) -> list[int]:
        """Takes a slot for each key and returns them.

        Keys with an idle slot get it; then nobody can evict them. The others get a free slot, else the one
        that has been idle longest. A key that is at work elsewhere binds no second slot.
        """
        own = [self._idle.pop(key, None) for key in keys]
        self._at_work |= {slot: key for slot, key in zip(own, keys, strict=True) if slot is not None}
        return [self._take_any(key) if slot is None else slot for key, slot in zip(keys, own, strict=True)]

    def _take_any(self, key: str | None) -> int:
        if not self._free:
            self.release(next(iter(self._idle)))
        slot = heapq.heappop(self._free)
        if key is not None and key not in self._at_work.values():
            self._at_work[slot] = key
        return slot

    def leave(self, slot: int) -> None:
        """Ends the work of a slot, which becomes idle if it is bound, else free."""
        key = self._at_work.pop(slot, None)
        if key is None:
            self._set_free(slot)
        else:
            self._idle[key] = slot

    def release(self, key: str | None) -> None:
        """Unbinds a key; its slot is free at once, or when it is left."""
        self._at_work = {slot: bound for slot, bound in self._at_work.items() if bound != key}
        if (slot := self._idle.pop(key, None)) is not None:
            self._set_free(slot)

    def _set_free(self, slot: int) -> None:
        self._cached[slot] = 0
        heapq.heappush(self._free, slot)
