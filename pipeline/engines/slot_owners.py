"""Who owns each slot of an engine: the request it serves, then the `cache_key` it stays bound to."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence


class SlotOwners:
    """Slots that are free, in use, or idle: unused, but bound to a key.

    Args:
        number: of slots.
    """

    def __init__(self, number: int) -> None:
        self._key: list[str | None] = [None] * number
        self._slot_of_key: dict[str, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._free = list(range(number))  # a heap: low slots first keep the rows in use together

    @property
    def available(self) -> int:
        """Slots that can be taken."""
        return len(self._free) + len(self._idle)

    def take(self, keys: Sequence[str | None]) -> list[tuple[int, bool]]:
        """Takes a slot for each key; returns them, and whether each is still as its key left it.

        Keys with an idle slot get it; then nobody can evict them. The others get a free slot, else the one
        that has been idle longest. A key that is in use elsewhere binds no second slot.
        """
        own = [self._take_own(key) for key in keys]
        return [
            (self._take_any(key), False) if slot is None else (slot, True)
            for key, slot in zip(keys, own, strict=True)
        ]

    def _take_own(self, key: str | None) -> int | None:
        slot = None if key is None else self._slot_of_key.get(key)
        if slot is None or slot not in self._idle:
            return None
        del self._idle[slot]
        return slot

    def _take_any(self, key: str | None) -> int:
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            slot, _ = self._idle.popitem(last=False)
            if (evicted := self._key[slot]) is not None:
                del self._slot_of_key[evicted]
        self._key[slot] = None if key in self._slot_of_key else key
        if key is not None and self._key[slot] is not None:
            self._slot_of_key[key] = slot
        return slot

    def leave(self, slot: int) -> bool:
        """Ends the use of a slot, which becomes idle if it is bound; returns whether it is free instead."""
        if self._key[slot] is None:
            heapq.heappush(self._free, slot)
            return True
        self._idle[slot] = None
        return False

    def release(self, key: str) -> int | None:
        """Unbinds a key; returns its slot if that is free from now on. One in use is so when it is left."""
        slot = self._slot_of_key.pop(key, None)
        if slot is None:
            return None
        self._key[slot] = None
        if slot not in self._idle:
            return None
        del self._idle[slot]
        heapq.heappush(self._free, slot)
        return slot
