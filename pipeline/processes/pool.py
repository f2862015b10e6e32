"""Jobs done side by side by worker processes; their results come back in the order of the jobs.

A job is a picklable value, and its result has to follow from it alone. Then results do not depend on how
many workers there are, which of them does what, or how often one dies on the way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pipeline.errors import ArtifactError, ConfigError
from pipeline.processes.worker import Worker, WorkerDiedError, WorkerFailedError

TICK = 0.2
"""Seconds between two looks at the workers, and between two words of a worker on how far it is."""

MAX_DEATHS = 3
"""Deaths of workers that a pool survives."""

AHEAD = 4
"""Jobs per worker that may be begun or done beyond the oldest one that is not: their results wait for it."""


@dataclass(slots=True)
class _Desk:
    """A worker, and the job (its place, itself) that it does."""

    worker: Worker
    ready: bool = False
    job: tuple[int, Any] | None = None


class Pool:
    """Worker processes that do jobs; they start as jobs come, or by `start`, and live until `close`.

    Args:
        module: of the workers; its `main` calls `connect_to_parent`, then `serve`.
        size: number of workers at most.
        name: of a worker, in messages and of its log.
        log_folder: of their logs; None keeps no log.
        env: set over this process's environment.
    """

    def __init__(
        self,
        module: str,
        size: int,
        name: str,
        *,
        log_folder: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._module, self._size, self._name = module, size, name
        self._log_folder, self._env = log_folder, env
        self._started = self._deaths = 0
        self._desks: list[_Desk] = []

    def start(self, number: int) -> None:
        """Starts workers, `number` or as many as there may be, before there are jobs for them."""
        while len(self._desks) < min(number, self._size):
            self._hire()

    def do(self, jobs: Iterable[Any], on_tick: Callable[[int], None]) -> Generator[Any, None, None]:
        """Yields the result of each job, in their order; further jobs are drawn as workers fall free.

        Args:
            jobs: what to do; drawn in this process.
            on_tick: called several times a second with the number of items that are done since, as the
                workers say; what it raises ends the jobs that are being done.

        Raises:
            WorkerDiedError: more workers died than a pool survives.
            WorkerFailedError: a job failed over an error that is none of the two below; it would do so again.
            ConfigError: as a job raised it.
            ArtifactError: as a job raised it.
        """
        source = _Source(jobs, AHEAD * self._size)
        done: dict[int, Any] = {}
        try:
            while True:
                self._hand_out(source)
                if source.due in done:
                    source.due += 1
                    yield done.pop(source.due - 1)
                elif source.exhausted and all(desk.job is None for desk in self._desks):
                    return
                on_tick(self._hear(done, source, 0.0 if source.due in done else TICK))
        finally:
            for desk in [desk for desk in self._desks if desk.job is not None]:
                desk.worker.close(grace=0.0)
                self._desks.remove(desk)

    def close(self) -> None:
        """Ends the workers; idempotent."""
        for desk in self._desks:
            desk.worker.close(grace=0.0)
        self._desks.clear()

    def _hire(self) -> _Desk:
        name = f"{self._name} {self._started}"
        log = self._log_folder and self._log_folder / f"{name.replace(' ', '-')}.log"
        desk = _Desk(Worker(self._module, name, env=self._env, log=log))
        self._desks.append(desk)
        self._started += 1
        return desk

    def _hand_out(self, source: _Source) -> None:
        """Gives jobs to workers that have none, and to new ones as long as there may be more."""
        while True:
            idle = sorted((desk for desk in self._desks if desk.job is None), key=lambda desk: not desk.ready)
            if not idle and len(self._desks) == self._size:
                return
            if (job := source.draw()) is None:
                return
            desk = idle[0] if idle else self._hire()
            desk.job = job
            if desk.ready:
                self._ask(desk, source, partial(desk.worker.send, job[1]))

    def _hear(self, done: dict[int, Any], source: _Source, timeout: float) -> int:
        """Takes what workers have to say; returns how many items they have finished."""
        items = 0
        desk_of = {desk.worker.connection: desk for desk in self._desks}
        for connection in wait(list(desk_of), timeout):
            desk = desk_of[connection]  # type: ignore[index]
            answer = self._ask(desk, source, desk.worker.receive)
            if answer is None:
                continue
            kind, content = answer
            if kind == "items":
                items += content
            elif kind == "refused":
                raise content
            elif kind == "done":
                assert desk.job is not None
                done[desk.job[0]], desk.job = content, None
            elif kind == "ready":
                desk.ready = True
                if desk.job is not None:
                    self._ask(desk, source, partial(desk.worker.send, desk.job[1]))
        return items

    def _ask(self, desk: _Desk, source: _Source, call: Callable[[], Any]) -> Any:
        """Returns what a call of a worker returns; None if it was killed, and another does what it did."""
        try:
            return call()
        except WorkerDiedError as error:
            desk.worker.close()
            self._desks.remove(desk)
            self._deaths += 1
            if isinstance(error, WorkerFailedError) or self._deaths > MAX_DEATHS:
                raise
        if desk.job is not None:
            source.again.append(desk.job)
        return None


class _Source:
    """Jobs with their places: those to be done again first, none too far ahead of the oldest."""

    def __init__(self, jobs: Iterable[Any], ahead: int) -> None:
        self.due = 0  # place of the oldest job without a handed-out result
        self.exhausted = False
        self.again: list[tuple[int, Any]] = []
        self._jobs: Iterator[tuple[int, Any]] = enumerate(jobs)
        self._ahead = ahead
        self._drawn = 0

    def draw(self) -> tuple[int, Any] | None:
        """Returns the next job, or None if there is none for now."""
        if self.again:
            return self.again.pop()
        if self.exhausted or self._drawn - self.due >= self._ahead:
            return None
        job = next(self._jobs, None)
        self.exhausted = job is None
        self._drawn += job is not None
        return job


def serve(connection: Connection, do: Callable[[Any, Callable[[], None]], Any]) -> None:
    """Does jobs until the parent hangs up.

    Args:
        connection: of `connect_to_parent`.
        do: (job, what to call after each finished item) -> result. A ConfigError or ArtifactError is raised
            in the parent; any other error ends this process, with its traceback as last words.
    """
    connection.send(("ready", None))
    while True:
        try:
            job = connection.recv()
        except EOFError:
            sys.exit(0)
        items = _Items(connection)
        try:
            answer = ("done", do(job, items.one_more))
        except (ConfigError, ArtifactError) as error:
            answer = ("refused", error)
        items.tell()
        connection.send(answer)


class _Items:
    """Counts finished items, and tells the parent from time to time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number, self._told = 0, time.monotonic()

    def one_more(self) -> None:
        self._number += 1
        if time.monotonic() - self._told > TICK:
            self.tell()

    def tell(self) -> None:
        if self._number:
            self._connection.send(("items", self._number))
        self._number, self._told = 0, time.monotonic()
