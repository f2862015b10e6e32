"""A time by which an exchange is over: time-outs of HTTP libraries wait for a next byte, not the last."""

import socket
import threading
from contextlib import suppress
from typing import Any, Self


class Deadline:
    """Shuts an exchange's socket after so many seconds, whatever is waited for then, headers or body.

    Connecting and TLS's handshake have the library's own time-outs; a socket that comes late is shut at once.
    `trace` is the request's extension of that name, by which httpx tells of its connection (documentation,
    "Request extensions"). The connection must be the exchange's own.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Takes in a new socket; a tunnel's or TLS's replaces the one below it."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                self._shut_if_passed()

    def _pass(self) -> None:
        with self._lock:
            self.passed = True
            self._shut_if_passed()

    def _shut_if_passed(self) -> None:
        if self.passed and self._socket is not None:
            with suppress(OSError):  # it is closed already
                # Not TLS's own `shutdown`, which forgets its state under whoever reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
