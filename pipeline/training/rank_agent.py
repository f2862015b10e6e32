"""Lends a node's processes to a stage of another node: starts ranks here, and passes on what they say.

A stage may have several groups of ranks at once, such as trainer and reference policy: each has a link and
a thread of its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from pipeline.errors import ExitCode
from pipeline.processes.life import TICK, Scope, workers_of
from pipeline.processes.nodes import REFUSALS, Link, Meeting
from pipeline.processes.shared_weights import SharedWeights, Written, mapped
from pipeline.processes.worker import Worker, WorkerDiedError, accounts_of
from pipeline.training.far_ranks import memory_of, with_memory
from pipeline.training.rank_group import DeepSpeedOptions, start_ranks


def lent(folder: Path, patience: float, say: Callable[[str], None]) -> tuple[ExitCode, str] | None:
    """Returns exit code and message of the stage that this node's ranks have served, once it has ended.

    None if no process that holds the stage's folder waits for nodes. Who held it and was lost means 75.
    """
    meeting = Meeting.read(folder)
    if meeting is None:
        return None
    import torch  # noqa: F401 - what starts ranks asks it; who waits for them would hear nothing meanwhile

    asked = time.monotonic()
    try:
        host, told = meeting.call(("lends", socket.gethostname(), os.getpid()))
    except OSError:
        return None
    try:
        place, log_name, theirs = told.receive()
    except REFUSALS:  # it has all the nodes that it wants
        told.close()
        return None
    say(f"lends its ranks to the process on {host} that holds {folder}")
    ahead = theirs - (asked + time.monotonic()) / 2  # of their clock
    meeting = replace(meeting, addresses=(host,))
    threads, over = [], threading.Event()
    with workers_of(Scope(folder / "logs" / log_name, patience)):
        try:
            while True:
                wait([cast(Any, told)])
                what, *said = told.receive()
                if what == "end":
                    code, message = said
                    return ExitCode(code), message
                threads.append(threading.Thread(target=_serve, args=(meeting, place, ahead, over)))
                threads[-1].start()
        except (EOFError, OSError):
            said = f"the process on {host} that held the stage was lost"
            return ExitCode.STOPPED, f"{folder}: {said}. Next: the same command again, on every node"
        finally:
            over.set()
            for thread in threads:
                thread.join()
            told.close()


def _serve(meeting: Meeting, place: int, ahead: float, over: threading.Event) -> None:
    """Serves one group until the stage closes it or is over."""
    host, link = meeting.call(("link", place))
    group = _Group(link, host, ahead)
    try:
        group.serve(over)
    except (EOFError, ConnectionError, BlockingIOError):
        pass  # the stage is gone, and says why
    finally:
        group.close()


class _Group:
    """This node's ranks of one group."""

    def __init__(self, link: Link, host: str, ahead: float) -> None:
        self._link, self._host, self._ahead = link, host, ahead
        self._workers: list[Worker] = []
        self._open: dict[Connection, int] = {}  # pipe of a rank that lives -> its place here
        self._answering: set[int] = set()
        self._memories: dict[str, tuple[str, SharedWeights]] = {}  # path here -> path there
        self._keeps: set[str] = set()  # what ranks read again
        self._signed = 0.0
        self._grace = 0.0

    def serve(self, over: threading.Event) -> None:
        """Passes on what stage and ranks say to each other until the stage closes the group or is over."""
        while not over.is_set():
            for ready in wait([cast(Any, self._link), *self._open], TICK):
                if ready in self._open:
                    self._hear(ready)
                    continue
                if ready is not self._link:  # a rank whose end was noticed meanwhile
                    continue
                what, *said = self._link.receive()
                if what == "close":
                    [self._grace] = said
                    return
                getattr(self, f"_on_{what}")(*said)
            self._sign()

    def close(self) -> None:
        """Ends the ranks, then says so by hanging up."""
        for worker in self._workers:
            worker.close(self._grace)
        self._keeps = set()
        self._free()
        self._link.close()

    def _on_begin(self, node: int, nodes: int, port: int, options: DeepSpeedOptions) -> None:
        self._meeting = f"tcp://{self._host}:{port}"
        for worker in start_ranks(options, node, nodes):
            self._workers.append(worker)
        self._open = {worker.connection: place for place, worker in enumerate(self._workers)}

    def _on_tell(self, messages: list[tuple[Any, Any]], read: Sequence[Any]) -> None:
        here = {}
        for layout in (layout for message in messages for kind in memory_of(message) for layout in kind):
            if layout.path not in here:
                memory = SharedWeights()
                here[layout.path] = memory.like(layout)
                self._memories[here[layout.path].path] = layout.path, memory
        for layout in read:
            with memoryview(mapped(here[layout.path].path)) as whole:
                self._link.receive_into(whole, self._sign)
        if not isinstance(messages[0][0], str) and not messages[0][0].trains:
            self._keeps = {layout.path for layout in here.values()}
        self._answering = set(self._open.values())
        for place, (worker, message) in enumerate(zip(self._workers, messages, strict=True)):
            if place not in self._answering:
                continue
            first, rest = with_memory(message, here)
            try:
                worker.send((first, rest if isinstance(first, str) else self._meeting), self._sign)
            except WorkerDiedError as error:
                self._end(place, error)

    def _on_accounts(self, places: Sequence[int]) -> None:
        self._link.send(("accounts", accounts_of([self._workers[place] for place in places])))

    def _hear(self, connection: Connection) -> None:
        place = self._open[connection]
        try:
            kind, answer = connection.recv()
        except (EOFError, OSError):
            self._end(place, self._workers[place].death())
            return
        if kind == "failed":
            answer += self._ahead
        if isinstance(answer, Written):
            theirs, _ = self._memories[answer.path]
            self._link.send(("heard", place, kind, replace(answer, path=theirs)))
            with memoryview(mapped(answer.path)) as memory:
                for first, last in answer.runs:
                    with memory[first:last] as run:
                        self._link.send_from(run)
        else:
            self._link.send(("heard", place, kind, answer))
        self._answered(place)

    def _end(self, place: int, error: WorkerDiedError) -> None:
        del self._open[self._workers[place].connection]
        self._link.send(("ended", place, error))
        self._answered(place)

    def _answered(self, place: int) -> None:
        self._answering.discard(place)
        if not self._answering:
            self._free()

    def _free(self) -> None:
        for path in self._memories.keys() - self._keeps:
            self._memories.pop(path)[1].close()

    def _sign(self) -> None:
        """Passes on the ranks' signs of life, by the clock of the stage's node, twice a second."""
        if self._workers and time.monotonic() - self._signed >= TICK:
            self._signed = time.monotonic()
            signs = [worker.signs.last() for worker in self._workers]
            self._link.send(("signs", [sign._replace(time=sign.time + self._ahead) for sign in signs]))
