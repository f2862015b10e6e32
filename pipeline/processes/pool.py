"""Jobs done side by side by worker processes; their results come back in the order of the jobs.

A job is a picklable value, and its result has to follow from it alone. Then results do not depend on how
many workers there are, which of them does what, or how often one dies on the way.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pipeline.errors import ArtifactError, ConfigError
from pipeline.processes.failpoints import failpoint
from pipeline.processes.life import Silence, limit_of, sign_of_life
from pipeline.processes.worker import Worker, WorkerDiedError, WorkerFailedError, WorkerHungError, hung

TICK = 0.2  # seconds between two looks at the workers, and between two words of a worker on how far it is
MAX_DEATHS = 3  # of workers, that a pool survives
AHEAD = 4  # jobs per worker that may be begun or done beyond the oldest one that is not


@dataclass(slots=True)
class _Desk:
    """A worker, and the job (its place, itself) that it does."""

    worker: Worker
    silence: Silence  # since it was hired, given its job, or heard
    ready: bool = False
    job: tuple[int, Any] | None = None


class Pool:
    """At most `size` worker processes; they start as jobs come, or by `start`, and live until `close`.

    `main` of their module calls `connect_to_parent`, then `serve`. `env` is set over this environment.
    """

    def __init__(
        self, module: str, size: int, name: str, *, env: Mapping[str, str], log_folder: Path | None = None
    ) -> None:
        self._module, self._size, self._name = module, size, name
        self._log_folder, self._env = log_folder, env
        self._started = self._deaths = 0
        self._desks: list[_Desk] = []
        self._drawn = self._due = 0  # jobs drawn so far; the place of the next result
        self._again: list[tuple[int, Any]] = []  # jobs of workers that died
        self._done: dict[int, Any] = {}  # results that wait for an older one

    def start(self, number: int) -> None:
        """Starts workers, `number` or as many as there may be, before there are jobs for them."""
        while len(self._desks) < min(number, self._size):
            self._hire()

    def do(self, jobs: Iterable[Any], on_tick: Callable[[int], None]) -> Generator[Any, None, None]:
        """Yields the result of each job, in their order; further jobs are drawn as workers fall free.

        `on_tick` is called several times a second with the number of items that are done since; what it
        raises ends the jobs that are being done. A job's ConfigError or ArtifactError is raised as it is, any
        other error as WorkerFailedError. Raises WorkerDiedError when more workers died than a pool survives,
        WorkerHungError when one gives no sign of life.
        """
        source = enumerate(jobs)
        self._drawn = self._due = 0
        self._again, self._done = [], {}
        try:
            while True:
                while self._has_room() and (job := self._next_job(source)) is not None:
                    self._give(job)
                if self._due in self._done:
                    self._due += 1
                    yield self._done.pop(self._due - 1)
                elif all(desk.job is None for desk in self._desks):
                    return
                on_tick(self._hear(0.0 if self._due in self._done else TICK))
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
        worker = Worker(self._module, name, env=self._env, log=log)
        desk = _Desk(worker, Silence([worker.signs]))
        self._desks.append(desk)
        self._started += 1
        return desk

    def _next_job(self, source: Iterator[tuple[int, Any]]) -> tuple[int, Any] | None:
        if self._again:
            return self._again.pop()
        if self._drawn - self._due >= AHEAD * self._size:
            return None
        job = next(source, None)
        self._drawn += job is not None
        return job

    def _has_room(self) -> bool:
        return len(self._desks) < self._size or any(desk.job is None for desk in self._desks)

    def _give(self, job: tuple[int, Any]) -> None:
        """Gives a job to a worker that has none, rather a ready one, else to a new one."""
        idle = [desk for desk in self._desks if desk.job is None]
        desk = min(idle, key=lambda desk: not desk.ready) if idle else self._hire()
        desk.job = job
        self._begin(desk)

    def _begin(self, desk: _Desk) -> None:
        if desk.ready and desk.job is not None:
            desk.silence.begin()
            with self._surviving(desk):
                desk.worker.send(desk.job[1])

    def _hear(self, timeout: float) -> int:
        """Takes what workers have to say; returns how many items they have finished."""
        items = 0
        desk_of = {desk.worker.connection: desk for desk in self._desks}
        ready = wait(list(desk_of), timeout)
        for connection, desk in desk_of.items():
            if connection not in ready:
                self._refuse_silence(desk)
                continue
            desk.silence.begin()
            kind, content = "died", None
            with self._surviving(desk):
                kind, content = desk.worker.receive()
            if kind == "items":
                items += content
            elif kind == "refused":
                raise content
            elif kind == "done":
                assert desk.job is not None
                self._done[desk.job[0]], desk.job = content, None
            elif kind == "ready":
                desk.ready = True
                self._begin(desk)
        return items

    def _refuse_silence(self, desk: _Desk) -> None:
        """Raises WorkerHungError if it should work and gives no sign of life."""
        doing = "its work" if desk.ready else "start"
        if (desk.job is not None or not desk.ready) and desk.silence.seconds() > limit_of(doing):
            raise hung([desk.worker], limit_of(doing), doing)

    @contextmanager
    def _surviving(self, desk: _Desk) -> Iterator[None]:
        """Has another worker do the job of this one if it is killed in the block."""
        try:
            yield
        except WorkerDiedError as error:
            desk.worker.close()
            self._desks.remove(desk)
            self._deaths += 1
            if isinstance(error, WorkerFailedError | WorkerHungError) or self._deaths > MAX_DEATHS:
                raise
            if desk.job is not None:
                self._again.append(desk.job)


def serve(connection: Connection, do: Callable[[Any, Callable[[], None]], Any]) -> None:
    """Does jobs until the parent hangs up.

    `do` gets a job and what to call after each finished item; it returns the result. A ConfigError or an
    ArtifactError is raised in the parent; any other error ends this process, its traceback as last words.
    """
    items, said = 0, time.monotonic()

    def say() -> None:
        nonlocal items, said
        if items:
            connection.send(("items", items))
        items, said = 0, time.monotonic()

    def one_more() -> None:
        nonlocal items
        items += 1
        sign_of_life("an item")
        if time.monotonic() - said > TICK:
            say()

    connection.send(("ready", None))
    while True:
        try:
            job = connection.recv()
        except EOFError:
            sys.exit(0)
        failpoint("pool.job")
        try:
            answer = ("done", do(job, one_more))
        except (ConfigError, ArtifactError) as error:
            answer = ("refused", error)
        say()
        connection.send(answer)
