"""Ranks on another node, as the group of all ranks sees them; what serves them there is `rank_agent.py`."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.processes.life import Sign
from pipeline.processes.nodes import Link, lost, reason
from pipeline.processes.shared_weights import Layout, Written, mapped
from pipeline.processes.worker import Account, WorkerDiedError

if TYPE_CHECKING:
    from pipeline.training.rank_group import RankSetup

PATIENCE = 90.0  # seconds for an agent to say how a rank has ended, where ranks stand, or that all have ended


class FarRank:
    """What a rank's `Worker` is on its own node: what has come from it, its signs of life, how it ended."""

    def __init__(self, node: NodeRanks, place: int, name: str) -> None:
        self.node, self.place, self.name = node, place, name
        self.connection = Mailbox()
        self.sign = Sign(0, 0.0, "")
        self._error: WorkerDiedError | None = None
        self._ended = threading.Event()

    @property
    def signs(self) -> FarRank:
        """Where its signs of life are: here."""
        return self

    def last(self) -> Sign:
        """Returns its last sign of life that has come, by this node's clock."""
        return self.sign

    def end(self, error: WorkerDiedError) -> None:
        """Notes how it has ended, the first time."""
        if not self._ended.is_set():
            self._error = error
            self._ended.set()
            self.connection.hang_up()

    def death(self) -> WorkerDiedError:
        """Returns the error that tells how it ended; see `Worker.death`."""
        self._ended.wait(PATIENCE)
        return self._error or lost(self.name, "its node does not say how it ended")

    def close(self, grace: float = 5.0) -> None:
        """Ends all ranks of its node; idempotent."""
        self.node.close(grace)


class Mailbox:
    """What has come from a rank, and can be waited for as a pipe can."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._messages: deque[Any] = deque()
        self._lock = threading.Lock()  # two threads may hang up

    def fileno(self) -> int:
        """Returns the descriptor that is readable when there is something, or never will be."""
        return self._read

    def put(self, message: Any) -> None:
        """Adds what has come."""
        with self._lock:
            if self._write >= 0:
                self._messages.append(message)
                os.write(self._write, b".")

    def recv(self) -> Any:
        """Returns the next message; EOFError if none is left and none will come."""
        if not os.read(self._read, 1):
            raise EOFError
        return self._messages.popleft()

    def hang_up(self) -> None:
        """Takes no more; idempotent."""
        with self._lock:
            if self._write >= 0:
                os.close(self._write)
                self._write = -1

    def close(self) -> None:
        """Frees it; idempotent."""
        self.hang_up()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1


class NodeRanks:
    """The ranks of a group that one other node has, `ranks`, and the link to the agent there."""

    def __init__(self, name: str, link: Link, numbers: Sequence[int]) -> None:
        """Starts to listen.

        Args:
            name: of the node and the agent, for people.
            link: to the agent; this object's from now on.
            numbers: of the ranks.
        """
        self._name, self._link = name, link
        host = name.split()[0]
        self.ranks = [FarRank(self, i, f"DeepSpeed rank {rank} on {host}") for i, rank in enumerate(numbers)]
        self._accounts: list[Account] = []
        self._accounted = threading.Event()
        self._closed = False
        self._listener = threading.Thread(target=self._listen, name=f"ranks of {name}", daemon=True)
        self._listener.start()

    def begin(self, setup: RankSetup, node: int, nodes: int, port: int) -> None:
        """Has the agent start the ranks, which meet at a port of this machine; they answer `ready`."""
        self._say("begin", node, nodes, port, setup.options)
        self.tell([(setup, "")] * len(self.ranks))

    def tell(self, messages: Sequence[tuple[Any, Any]]) -> None:
        """Sends each rank its message, and once what they read of this node's memory.

        If the node is lost meanwhile, what waits for its ranks learns it.
        """
        read = {layout.path: layout for message in messages for layout in memory_of(message)[0]}
        self._say("tell", list(messages), list(read.values()), memories=[one.path for one in read.values()])

    def _say(self, *message: Any, memories: Sequence[str] = ()) -> None:
        try:
            self._link.send(message)
            for path in memories:
                with memoryview(mapped(path)) as memory:
                    self._link.send_from(memory)
        except OSError:  # it may have been cut in mid-sentence
            self._link.hang_up()

    def accounts(self, ranks: Sequence[FarRank]) -> list[Account]:
        """Returns what is known of silent ranks of this node, whose stacks are in their logs then."""
        self._say("accounts", [rank.place for rank in ranks])
        if self._accounted.wait(PATIENCE):
            return self._accounts
        return [
            Account(rank.name, 0, "of a node that is silent", rank.last(), "  (nothing)") for rank in ranks
        ]

    def close(self, grace: float = 5.0) -> None:
        """Ends the ranks, as `Worker.close` does, and the link; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._say("close", grace)
        self._listener.join(PATIENCE)  # until the agent has ended them and hung up
        self._link.close()
        self._listener.join()
        for rank in self.ranks:
            rank.connection.close()

    def _listen(self) -> None:
        """Takes what the agent says until it hangs up."""
        why = "it hung up"
        try:
            while True:
                what, *said = self._link.receive()
                getattr(self, f"_on_{what}")(*said)
        except (EOFError, OSError) as error:
            why = reason(error)
        except Exception as error:  # what it said makes no sense here, say for want of a package
            why = repr(error)
        finally:
            for rank in self.ranks:
                rank.end(lost(f"{rank.name}, of the node {self._name},", why))

    def _on_signs(self, signs: list[Sign]) -> None:
        for rank, sign in zip(self.ranks, signs, strict=True):
            rank.sign = sign

    def _on_heard(self, place: int, kind: str, answer: Any) -> None:
        if isinstance(answer, Written):  # what it wrote comes next
            with memoryview(mapped(answer.path)) as memory:
                for first, last in answer.runs:
                    with memory[first:last] as run:
                        self._link.receive_into(run)
        self.ranks[place].connection.put((kind, answer))

    def _on_ended(self, place: int, error: WorkerDiedError) -> None:
        self.ranks[place].end(error)

    def _on_accounts(self, accounts: list[Account]) -> None:
        self._accounts = accounts
        self._accounted.set()


def memory_of(message: tuple[Any, Any]) -> tuple[list[Layout], list[Layout]]:
    """Returns the memory that a message to a rank names: what the rank reads of it, and what it writes.

    It is a setup, or a call: of `write_...` the last argument is written.
    """
    first, rest = message
    if not isinstance(first, str):
        return [first.weights] if isinstance(first.weights, Layout) else [], []
    found = [argument for argument in rest if isinstance(argument, Layout)]
    return (found[:-1], found[-1:]) if first.startswith("write_") else (found, [])


def with_memory(message: tuple[Any, Any], here: Mapping[str, Layout]) -> tuple[Any, Any]:
    """Returns a message that names other memory, `here`: path -> layout, in place of what it named."""
    first, rest = message
    if not isinstance(first, str):
        weights = first.weights
        return (replace(first, weights=here[weights.path]), rest) if isinstance(weights, Layout) else message
    return first, tuple(here[one.path] if isinstance(one, Layout) else one for one in rest)
