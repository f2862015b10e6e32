"""Messages between this process and a confined one: length and JSON, after a mark on the way out.

What comes out was made by an untrusted program, so it is read with care: bounded, and plain data or nothing.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

MARK_BYTES = 16  # random; the confined process learns its mark with its first message
_LENGTH_BYTES = 4


class BrokenChannelError(ValueError):
    """The other side sent what is no message."""


class TooLongError(ValueError):
    """The other side sent more than it may."""


def packed(message: JsonValue, mark: bytes = b"") -> bytes:
    """Returns a message's bytes: mark, length, JSON. Raises TypeError and ValueError for what is no JSON."""
    body = json.dumps(message).encode("ascii")
    return mark + len(body).to_bytes(_LENGTH_BYTES, "big") + body


def receive(descriptor: int) -> JsonValue:
    """Waits for a message from this project's own side and returns it. Raises EOFError at the end."""
    length = int.from_bytes(_exactly(descriptor, _LENGTH_BYTES), "big")
    message: JsonValue = json.loads(_exactly(descriptor, length))
    return message


def send(descriptor: int, data: bytes) -> None:
    """Writes all of the bytes."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _exactly(descriptor: int, number: int) -> bytes:
    parts = []
    while number:
        part = os.read(descriptor, min(number, 2**16))
        if not part:
            raise EOFError("nobody asks any more")
        parts.append(part)
        number -= len(part)
    return b"".join(parts)


class Inbox:
    """What a confined process has sent, up to `most` bytes between two calls of `refill`."""

    def __init__(self, mark: bytes) -> None:
        self._mark, self._data, self._left = mark, b"", 0

    def refill(self, most: int) -> None:
        """Lets it send as many bytes from now on."""
        self._left = most

    def add(self, data: bytes) -> None:
        """Takes what was read. Raises TooLongError."""
        self._left -= len(data)
        if self._left < 0:
            raise TooLongError("more than it may send")
        self._data += data

    def take(self) -> tuple[str, JsonValue] | None:
        """Returns the next message, a kind and a value, or None if it is not whole yet.

        Raises BrokenChannelError for a wrong mark, and for what is not JSON, too deep or not Unicode.
        """
        head = MARK_BYTES + _LENGTH_BYTES
        if not self._data.startswith(self._mark[: len(self._data)]):
            raise BrokenChannelError("a message without its mark")
        if len(self._data) < head:
            return None
        length = int.from_bytes(self._data[MARK_BYTES:head], "big")
        if length > self._left + len(self._data):
            raise TooLongError("more than it may send")
        if len(self._data) < head + length:
            return None
        body, self._data = self._data[head : head + length], self._data[head + length :]
        try:
            kind, value = json.loads(body)
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except (ValueError, TypeError, RecursionError) as error:
            raise BrokenChannelError("no JSON, or too deep") from error
        return str(kind), value
