"""Nodes that lend processes to a stage of another node: how they find it, and the links between them.

The process that holds the stage listens. Its addresses and a random key lie in a file of the stage's folder
that its user alone can read, and who knows the key is let in. What travels is Python's own form of objects
and not encrypted: the network between the nodes must be trusted, as it must be for torch's own traffic.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from pathlib import Path
from typing import Any

from pipeline.errors import ExitCode
from pipeline.processes.life import TICK, limit_of
from pipeline.processes.worker import WorkerDiedError

MEETING = "_nodes"
"""File of a stage's folder that says where the process listens that waits for other nodes."""
PIECE = 1 << 24  # bytes of memory that travel between two looks
SHORTEST = 10.0  # seconds that whoever is silent in mid-sentence has, however short patience is
HANDSHAKE = 10.0  # seconds for each word of it
REFUSALS = (OSError, EOFError, AuthenticationError)


class Link:
    """One end of a connection between two nodes: for messages, and for bytes from memory to memory.

    What waits for the other end is an OSError after `limit_of("a link")` seconds, or when its machine has
    gone; an EOFError when its process has.
    """

    def __init__(self, sock: socket.socket, key: bytes, *, called: bool) -> None:
        """Proves to the other end that this one knows the key, and the other way round."""
        self._socket = sock
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._messages = Connection(os.dup(sock.fileno()))
        try:
            self._wait_at_most(HANDSHAKE)
            for turn in (deliver_challenge, answer_challenge)[:: 1 if called else -1]:
                turn(self._messages, key)
            self._wait_at_most(max(SHORTEST, limit_of("a link")))
        except BaseException:
            self.close()
            raise

    def _wait_at_most(self, seconds: float) -> None:
        part = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, part)
        # So that a machine that has vanished is noticed where this end only listens, too.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        each = max(1, int(seconds / 4))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, each)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, each)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))

    def fileno(self) -> int:
        """Returns the descriptor to wait on."""
        return self._messages.fileno()

    def send(self, message: Any) -> None:
        """Sends a message."""
        # Not by `send`, by which torch would pass tensors on in memory of this machine.
        self._messages.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Returns the next message."""
        return pickle.loads(self._messages.recv_bytes())

    def send_from(self, memory: memoryview) -> None:
        """Sends bytes, without their number."""
        self._socket.sendall(memory)

    def receive_into(self, memory: memoryview, look: Callable[[], None] = lambda: None) -> None:
        """Fills memory with the next bytes; calls `look` now and then."""
        place = 0
        while place < len(memory):
            got = self._socket.recv_into(memory[place:], min(PIECE, len(memory) - place))
            if not got:
                raise EOFError
            place += got
            look()

    def hang_up(self) -> None:
        """Ends the connection for whoever waits on it, at both ends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees this end; idempotent."""
        self.hang_up()
        self._messages.close()
        self._socket.close()


def lost(who: str, why: str) -> WorkerDiedError:
    """Returns the error that says that a node was lost. Exit code 75."""
    return WorkerDiedError(
        f"{who} was lost: {why}. What was committed stays. Next: the same command again, on every node",
        code=ExitCode.STOPPED,
    )


def reason(error: BaseException) -> str:
    """Returns what an error of a link means, for people."""
    if isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
        return "its process has ended, or gave up and says why there"
    if isinstance(error, BlockingIOError):
        return "it said nothing for too long"
    return str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a process listens that waits for other nodes, and the key that lets them in."""

    addresses: tuple[str, ...]  # names and numbers of its machine, one of which others can reach
    port: int
    key: str

    @classmethod
    def read(cls, folder: Path) -> Meeting | None:
        """Returns what lies in a stage's folder, perhaps of a process that is dead."""
        try:
            found = json.loads((folder / MEETING).read_text("utf-8"))
            return cls(tuple(found["addresses"]), found["port"], found["key"])
        except (OSError, ValueError, KeyError):
            return None

    def write(self, folder: Path) -> None:
        """Lays it into a stage's folder, for this user alone."""
        draft = folder / f"{MEETING}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        os.replace(draft, folder / MEETING)

    def call(self, hello: Any) -> tuple[str, Link]:
        """Returns the address that answers, and a link on which `hello` was said; OSError if none does."""
        error: BaseException = OSError("it has no address")
        for address in self.addresses:
            try:
                sock = socket.create_connection((address, self.port), HANDSHAKE)
                link = Link(sock, bytes.fromhex(self.key), called=False)
            except REFUSALS as found:
                error = found
                continue
            try:
                link.send(hello)
                return address, link
            except OSError as found:
                error = found
                link.close()
        raise ConnectionError(f"{', '.join(self.addresses)} port {self.port}: {reason(error)}")


def addresses() -> tuple[str, ...]:
    """Returns what other nodes may call this machine, the likeliest first; no packet is sent."""
    found = [socket.gethostname()]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))  # of no machine: it asks which way leads out
        found.append(sock.getsockname()[0])
    return tuple(found)


class Nodes:
    """The nodes that lend their processes to a start of a stage, as the process that holds it sees them."""

    def __init__(self, folder: Path, number: int, log_name: str) -> None:
        """Listens nowhere yet.

        Args:
            folder: of the stage, which all nodes see.
            number: of nodes, this one included.
            log_name: of the start, under which all of them keep their logs.
        """
        self._folder, self.number, self._log_name = folder, number, log_name
        self._lent: list[tuple[str, Link]] = []  # who, and the link on which it is told what to do
        self._server: socket.socket | None = None
        self._key = secrets.token_bytes(32)

    def gather(self, say: Callable[[str], None], look: Callable[[], None]) -> None:
        """Waits until all are there. Raises WorkerDiedError, code 75, if some are not in time."""
        (self._folder / MEETING).unlink(missing_ok=True)  # of a start that was killed
        if self.number == 1:
            return
        self._server = socket.create_server(("", 0))
        Meeting(addresses(), self._server.getsockname()[1], self._key.hex()).write(self._folder)
        say(f"waits for {self.number - 1} more nodes")
        until = time.monotonic() + limit_of("start")
        while len(self._lent) < self.number - 1:
            look()
            if time.monotonic() > until:
                there = ", ".join(["this one", *(name for name, _ in self._lent)])
                said = f"{1 + len(self._lent)} came in {limit_of('start'):.0f} s ({there})"
                raise WorkerDiedError(
                    f"--nodes {self.number}, but {said}. Next: the same command on all of them, or fewer",
                    code=ExitCode.STOPPED,
                )
            if (came := self._accepted()) is None:
                continue
            (what, *hello), link = came
            if what != "lends":
                link.close()
                continue
            name = "{} (process {})".format(*hello)
            link.send((1 + len(self._lent), self._log_name, time.monotonic()))
            self._lent.append((name, link))
            say(f"{name} lends its ranks")

    def links(self) -> list[tuple[str, Link]]:
        """Returns each node's name and a new link to it, for one group of processes."""
        found: dict[int, Link] = {}
        for name, told in self._lent:
            try:
                told.send(("link",))
            except OSError as error:
                raise lost(f"the node {name}", reason(error)) from error
        until = time.monotonic() + max(SHORTEST, limit_of("a link"))
        while len(found) < len(self._lent):
            missing = next(name for place, (name, _) in enumerate(self._lent, 1) if place not in found)
            if time.monotonic() > until or self._gone():
                for link in found.values():
                    link.close()
                raise lost(f"the node {self._gone() or missing}", "it does not call")
            if (came := self._accepted()) is not None:
                (what, *hello), link = came
                if what == "link":
                    found[hello[0]] = link
                else:  # one node too many
                    link.close()
        return [(name, found[place]) for place, (name, _) in enumerate(self._lent, 1)]

    def _gone(self) -> str | None:
        """Returns who has hung up; nobody says anything else on these links."""
        controls: dict[Any, str] = {link: name for name, link in self._lent}
        return next((controls[link] for link in wait(list(controls), 0)), None)

    def _accepted(self) -> tuple[tuple[Any, ...], Link] | None:
        """Returns what somebody said who called in time, and the link to it."""
        assert self._server is not None
        if not wait([self._server], TICK):
            return None
        sock, _ = self._server.accept()
        try:
            link = Link(sock, self._key, called=True)
        except REFUSALS:
            return None
        try:
            return link.receive(), link
        except REFUSALS:
            link.close()
            return None

    def end(self, code: int, message: str) -> None:
        """Tells all how the stage has ended, and listens no more; idempotent."""
        for _, link in self._lent:
            with suppress(OSError):
                link.send(("end", code, message))
            link.close()
        self._lent = []
        if self._server is not None:
            self._server.close()
            self._server = None
            (self._folder / MEETING).unlink(missing_ok=True)
