"""One confined process at work, seen from this side: what it is told, what it says, how it is ended."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from env.sandbox.channel import MARK_BYTES, BrokenChannelError, Inbox, TooLongError, packed
from env.sandbox.clock import STARVED, TICK, Clock
from env.sandbox.host import ANSWER_SECONDS, Launcher, UnavailableError
from env.sandbox.launcher import READY
from env.sandbox.outcome import Limits, Outcome, Status

if TYPE_CHECKING:
    from pydantic import JsonValue

_ENDS: dict[str, Status] = {"ok": "ok", "raised": "raised", "memory": "memory"}
"""What a process may say of its own end."""


class GuestProcess:
    """A new confined process of a launcher, which has no other one.

    Args:
        launcher: forks it.
        first: what the process is to do, as `env.sandbox.guest` reads it.
        limits: of each `ask`, or of all it does.
        is_asked: whether `ask` will be called; else `finish` is, and the kernel bounds its computing, too.

    Raises:
        UnavailableError: it cannot be had, or not confined.
    """

    def __init__(
        self, launcher: Launcher, first: dict[str, JsonValue], limits: Limits, *, is_asked: bool
    ) -> None:
        self.limits = limits
        self.over: Outcome | None = None  # how it ended
        self._launcher, self._is_asked = launcher, is_asked
        mark = secrets.token_bytes(MARK_BYTES)
        self._inbox, self._outgoing = Inbox(mark), packed({**first, "mark": mark.hex()})
        self._value: JsonValue = None
        self._said_end: Status | None = None
        self._ended: dict[str, Any] | None = None
        self._channel, theirs = socket.socketpair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self._out, self._err = out, err
        self._printed = {out: b"", err: b""}
        self._selector = selectors.DefaultSelector()
        try:
            given = [theirs.fileno(), out_end, err_end]
            pid = launcher.order(None if is_asked else limits.seconds, limits.memory_mb, given)
        except UnavailableError:
            self._close_ends()
            raise
        finally:
            theirs.close()
            os.close(out_end)
            os.close(err_end)
        self._wait_until_ready()
        self._clock = Clock(pid)

    def ask(self, message: JsonValue) -> Outcome:
        """Returns what it answers to a message, or how it ended."""
        if self.over is None:
            self._outgoing += packed(message)
        return self._listen()

    def finish(self) -> Outcome:
        """Returns how it ended, after it did."""
        return self._listen()

    def kill(self) -> None:
        """Ends it now; idempotent. A launcher that does not do it is broken."""
        if self.over is None:
            self.over = Outcome("crashed", stderr="ended from outside")
            if self._ended is None:
                with suppress(UnavailableError):
                    self._launcher.kill_child()
            self._close_ends()

    def _wait_until_ready(self) -> None:
        """Waits until it is confined; it reads nothing of anybody's before."""
        self._channel.settimeout(ANSWER_SECONDS)
        try:
            is_ready = self._channel.recv(1) == READY
        except OSError:
            is_ready = False
        if not is_ready:
            os.set_blocking(self._err, False)
            with suppress(OSError):
                self._printed[self._err] = os.read(self._err, 4096)
            why = self._printed[self._err].decode("utf-8", "replace")
            self.kill()
            raise UnavailableError(f"a process could not be confined: {why}")
        self._channel.setblocking(False)
        self._selector.register(self._channel, selectors.EVENT_READ)
        for source in (self._launcher.control, self._out, self._err):
            self._selector.register(source, selectors.EVENT_READ)

    def _listen(self) -> Outcome:
        """Returns the next answer, or how it ended."""
        if self.over is not None:
            return self.over
        self._clock.start()
        self._value = None
        self._inbox.refill(self.limits.output_bytes)
        self._printed = {self._out: b"", self._err: b""}
        try:
            pause = 0.0
            while self._ended is None:
                self._wait(pause)
                self._clock.look(pause)
                if self._takes_an_answer():
                    return self._outcome("ok")
                left = self.limits.seconds - self._clock.used
                if left <= 0 and pause == 0:  # it was looked once more: what lay there counts
                    return self._end("timeout")
                if self._clock.wall > STARVED * self.limits.seconds:
                    return self._end("unavailable")
                pause = min(max(left, 0.0), TICK)
            while self._wait(0.0):
                pass
            if self._takes_an_answer():
                return self._outcome("ok")
        except TooLongError:
            return self._end("output")
        except BrokenChannelError:
            return self._end("crashed")
        except UnavailableError:
            return self._end("unavailable")
        return self._end(self._own_end(self._ended))

    def _wait(self, seconds: float) -> bool:
        """Sends and reads what can be sent and read; returns whether anything could."""
        with suppress(KeyError):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
            self._selector.modify(self._channel, wanted)
        ready = self._selector.select(seconds)
        for key, events in ready:
            if key.fileobj is self._launcher.control:
                self._selector.unregister(key.fileobj)
                self._ended = self._launcher.hear(ANSWER_SECONDS)
            elif key.fileobj is not self._channel:
                self._read_output(key.fd)
            elif events & selectors.EVENT_WRITE:
                self._send()
            else:
                self._receive()
        return bool(ready)

    def _send(self) -> None:
        try:
            self._outgoing = self._outgoing[self._channel.send(self._outgoing) :]
            if not self._outgoing and not self._is_asked:
                self._channel.shutdown(socket.SHUT_WR)
        except OSError:  # it has closed its end
            self._outgoing = b""

    def _receive(self) -> None:
        data = b""
        with suppress(OSError):
            data = self._channel.recv(2**16)
        if not data:
            self._selector.unregister(self._channel)
        self._inbox.add(data)

    def _read_output(self, descriptor: int) -> None:
        data = os.read(descriptor, 2**16)
        if not data:
            self._selector.unregister(descriptor)
        self._printed[descriptor] += data
        if len(self._printed[descriptor]) > self.limits.output_bytes:
            raise TooLongError("more than it may print")

    def _takes_an_answer(self) -> bool:
        """Takes what it has said; returns whether there is an answer that somebody waits for."""
        while (message := self._inbox.take()) is not None:
            kind, value = message
            if kind == "value":
                self._value = value
                if self._is_asked:
                    return True
            elif kind == "end" and isinstance(value, str) and value in _ENDS:
                self._said_end = _ENDS[value]
            else:
                raise BrokenChannelError(f"a message of kind {kind!r}")
        return False

    def _own_end(self, ended: dict[str, Any]) -> Status:
        """Returns how it ended by itself: as it said, else as the kernel says."""
        if self._said_end is not None:
            return "raised" if self._is_asked and self._said_end == "ok" else self._said_end
        was_killed = ended["ended"] in (-signal.SIGKILL, -signal.SIGXCPU)
        return "timeout" if was_killed and ended["cpu"] >= self.limits.seconds else "crashed"

    def _end(self, status: Status) -> Outcome:
        """Ends it if it has not ended, and returns how."""
        outcome = self._outcome(status)
        self.kill()
        self.over = outcome
        return outcome

    def _outcome(self, status: Status) -> Outcome:
        printed = (self._printed[end][: self.limits.output_bytes] for end in (self._out, self._err))
        out, err = (text.decode("utf-8", "replace") for text in printed)
        return Outcome(status, self._value, out, err, self._clock.used)

    def _close_ends(self) -> None:
        self._selector.close()
        self._channel.close()
        os.close(self._out)
        os.close(self._err)
