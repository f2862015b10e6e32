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
        self._key: list[str | None] = [None] * len(cached)
        self._slot_of_key: dict[str | None, int] = {}  # None has none
        self._idle: dict[int, None] = {}  # least recently used first
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
        own = [self._take_own(key) for key in keys]
        return [self._take_any(key) if slot is None else slot for key, slot in zip(keys, own, strict=True)]

    def _take_own(self, key: str | None) -> int | None:
        slot = self._slot_of_key.get(key)
        if slot is None or slot not in self._idle:
            return None
        del self._idle[slot]
        return slot

    def _take_any(self, key: str | None) -> int:
        if not self._free:
            self.release(self._key[next(iter(self._idle))])
        slot = heapq.heappop(self._free)
        if key is not None and key not in self._slot_of_key:
            self._key[slot] = key
            self._slot_of_key[key] = slot
        return slot

    def leave(self, slot: int) -> None:
        """Ends the work of a slot, which becomes idle if it is bound, else free."""
        if self._key[slot] is None:
            self._set_free(slot)
        else:
            self._idle[slot] = None

    def release(self, key: str | None) -> None:
        """Unbinds a key; its slot is free at once, or when it is left."""
        slot = self._slot_of_key.pop(key, None)
        if slot is not None:
            self._key[slot] = None
            if slot in self._idle:
                del self._idle[slot]
                self._set_free(slot)

    def _set_free(self, slot: int) -> None:
        self._cached[slot] = 0
        heapq.heappush(self._free, slot)
