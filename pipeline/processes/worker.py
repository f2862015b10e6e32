"""Child processes that serve this one over a pipe and die with it.

Heavy libraries that own their process (vLLM's engine, DeepSpeed's ranks) run in one each: their memory,
threads, signals and crashes stay out of the stage's process, which keeps the ledger and the lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from pipeline.errors import ArtifactError, ExitCode
from pipeline.processes.life import TICK, Sign, Signs, Silence, limit_of, log_folder, sign_of_life, take_signs

_LOG_LINES = 12  # of a dead worker, in the error message
_STACKS = signal.SIGUSR2  # makes a worker write the stacks of its threads into its log
_STACKS_SECONDS = 3.0  # that it may take for it
_STACK = b"most recent call first"  # in the line above a stack; the main thread's comes last
_STATES = {"R": "running", "S": "waiting", "D": "waiting for a device", "T": "stopped"}
_PARENT = "VDAPO_PARENT_PID"


class WorkerDiedError(ArtifactError):
    """A child process was ended while it was needed. Exit code 75: what is committed stays, run again."""


class WorkerHungError(WorkerDiedError):
    """A child process gave no sign of life for too long, and was killed. Exit code 75, at once."""


class WorkerFailedError(WorkerDiedError):
    """A child process ended itself over an error that it reports. Exit code 1: it would do so again."""


class Worker:
    """A child process running `python -m module`, and the pipe to it.

    It has a session of its own, so a Ctrl-C meant for the stage does not reach it, and the kernel kills it
    when the stage dies. The module calls `connect_to_parent` first. `env` is set over this process's
    environment. The output goes to the file `log`, else to one of its name among the logs of the stage's
    start, or beside it where there is one already; without a stage it is kept as long as the process lives.
    """

    def __init__(
        self, module: str, name: str, *, env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.name = name
        self.connection, theirs = Pipe()  # to wait on; `send` and `receive` do the rest
        self.signs = Signs()
        self._log_path, self._log = _opened(name, log)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), str(self.signs.descriptor)],
            pass_fds=[theirs.fileno(), self.signs.descriptor],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **(env or {}), _PARENT: str(os.getpid())},
        )
        theirs.close()
        self.signs.close()
        self._finalizer = weakref.finalize(self, _end, self._process, self._log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: Any, look: Callable[[], None] = lambda: None) -> None:
        """Sends a message; looks while it waits. Raises WorkerDiedError, or WorkerHungError if unread."""
        failures: list[Exception] = []

        def pass_on() -> None:
            try:
                self.connection.send(message)
            except Exception as error:
                failures.append(error)

        # A pipe holds some 200 KB: with more, `send` waits until a worker reads that may never read again.
        sending = threading.Thread(target=pass_on, daemon=True)
        sending.start()
        silence, limit = Silence([self.signs]), limit_of("receive")
        while sending.is_alive():
            sending.join(TICK)
            look()
            if silence.seconds() > limit and sending.is_alive():
                raise hung([self], limit, "receiving a message")
        for error in failures:
            if isinstance(error, BrokenPipeError | ConnectionResetError):
                raise self.death() from error
            raise error

    def receive(
        self, limit: float | None = None, doing: str = "its work", look: Callable[[], None] = lambda: None
    ) -> Any:
        """Returns the next message; looks while it waits, and kills a worker silent for `limit` seconds.

        Raises WorkerDiedError if it was killed, WorkerFailedError if it ended itself over an error,
        WorkerHungError, which says what it was `doing`.
        """
        silence = Silence([self.signs])
        try:
            while not self.connection.poll(TICK):
                look()
                if limit is not None and silence.seconds() > limit:
                    raise hung([self], limit, doing)
            return self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self.death() from error

    def death(self, why: str | None = None) -> WorkerDiedError:
        """Ends what is left of the process; returns the error that tells what it last said.

        A status above 0 is an error of its own, which would come again.
        """
        if why is None:  # the pipe is closed: it is ending, and how it ends is to be known
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=60)
        self._stop()
        status, who, words = self._process.returncode, f"{self.name} (process {self.pid})", self._last_words()
        if why is None and status > 0:
            is_full = "OutOfMemoryError" in words or "MemoryError" in words
            step = "less load or memory (vdapo plan says what fits)" if is_full else "remove the cause"
            return WorkerFailedError(
                f"{who} failed and ended with status {status}. Its last words:\n{words}\n"
                f"What was committed stays. Next: {step}, then the same command goes on",
                code=ExitCode.DEFECT,
            )
        if why is None and status < 0:
            memory = " (out of memory?)" if status == -signal.SIGKILL else ""
            why = f"was killed by {signal.Signals(-status).name}{memory}"
        return WorkerDiedError(
            f"{who} {why or 'ended'}. Its last words:\n{words}\n"
            "What was committed stays. Next: the same command again, with less memory or load if it recurs",
            code=ExitCode.STOPPED,
        )

    def _last_words(self) -> str:
        """Returns the last lines of its output; of a stack, its innermost ones."""
        if self._log.closed:
            return "  (nothing)"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 16384))
        _, stack, last = self._log.read().rpartition(_STACK)
        lines = last.decode("utf-8", "replace").splitlines()
        lines = lines[1 : 1 + _LOG_LINES] if stack else lines[-_LOG_LINES:]
        words = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
        return words if self._log_path is None else f"{words}\n  (all of them: {self._log_path})"

    def _size_of_log(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def _state(self) -> str:
        """Returns what the kernel says of the process."""
        with contextlib.suppress(OSError, LookupError):
            return _STATES[Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]]
        return "gone"

    def close(self, grace: float = 5.0) -> None:
        """Ends the process and everything it started, after `grace` seconds at most; idempotent."""
        self._stop(grace)
        self._finalizer()

    def _stop(self, grace: float = 5.0) -> None:
        self.connection.close()  # the worker's next read ends it, with time to end what it started
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=grace)
        _end(self._process, None)


def _end(process: subprocess.Popen[bytes], log: IO[bytes] | None) -> None:
    """Kills a process and what it started: what happens to a worker that nobody closed, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if log is not None:
        log.close()


def _opened(name: str, path: Path | None) -> tuple[Path | None, IO[bytes]]:
    """Returns the file of a worker's output, and where it is; one of the same name is never overwritten."""
    if path is None:
        if (folder := log_folder()) is None:
            return None, tempfile.TemporaryFile()
        path = folder / f"{name.replace(' ', '-')}.log"
    for ending in ("", *(f"-{number}" for number in range(2, 1000))):
        with contextlib.suppress(FileExistsError):
            return (numbered := path.with_stem(path.stem + ending)), numbered.open("x+b")
    raise FileExistsError(f"{path}: a thousand workers of that name have kept their logs there")


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of a worker that is silent."""

    name: str
    pid: int
    state: str  # as the kernel says
    sign: Sign  # its last one
    words: str  # its stack, else what it printed last


def accounts_of(workers: Sequence[Worker]) -> list[Account]:
    """Returns what is known of silent workers, whose stacks are in their logs then."""
    states, signs = [w._state() for w in workers], [w.signs.last() for w in workers]
    sizes = [w._size_of_log() for w in workers]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, _STACKS)
    until = time.monotonic() + _STACKS_SECONDS
    while time.monotonic() < until and any(
        worker._size_of_log() == size
        for worker, size, state in zip(workers, sizes, states, strict=True)
        if state != "stopped"
    ):
        time.sleep(0.05)
    time.sleep(0.2)  # a stack is written line by line
    return [
        Account(worker.name, worker.pid, state, sign, worker._last_words())
        for worker, state, sign in zip(workers, states, signs, strict=True)
    ]


def hung(
    workers: Sequence[Worker], limit: float, doing: str, more: Sequence[Account] = ()
) -> WorkerHungError:
    """Kills workers that wait for each other; returns the error that names the one that is behind.

    Behind is who is stopped, else who has done the fewest pieces of the call, else who signed first: one of
    `more` perhaps, which are on other nodes.
    """
    accounts = [*accounts_of(workers), *more]
    for worker in workers:
        _end(worker._process, None)
    behind = min(accounts, key=lambda one: (one.state != "stopped", one.sign.number, one.sign.time))
    all_of_them = "; ".join(f"{one.name}: {_said(one.state, one.sign)}" for one in accounts)
    return WorkerHungError(
        f"{behind.name} (process {behind.pid}) gave no sign of life for {limit:.0f} s in {doing}: "
        f"{_said(behind.state, behind.sign)}. "
        + (f"All that waited were killed ({all_of_them}). " if len(accounts) > 1 else "It was killed. ")
        + f"Where it was:\n{behind.words}\n"
        "What was committed stays. Next: the same command again; if it is only slow, with run.patience=4",
        code=ExitCode.STOPPED,
    )


def _said(state: str, sign: Sign) -> str:
    return f"{state}, " + (f"last sign after {sign.after}, {sign.place}" if sign.number else "no sign yet")


_GUARDS: list[subprocess.Popen[bytes]] = []  # this worker's own; kept, since nobody waits for it

# Waits for its parent's death and kills what is left of the process group.
_GUARD = """
import ctypes, os, signal, sys
everything = signal.valid_signals()
signal.pthread_sigmask(signal.SIG_BLOCK, everything)
ctypes.CDLL(None).prctl(1, signal.SIGUSR1)
while os.getppid() == int(sys.argv[1]):
    signal.sigwait(everything)
os.killpg(0, signal.SIGKILL)
"""


def connect_to_parent() -> Connection:
    """Returns the pipe to the process that started this worker, and ties this process's life to its.

    What the worker starts itself dies with it, however it dies: a guard in its process group sees to that.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    faulthandler.register(_STACKS)
    take_signs(int(sys.argv[2]))
    sign_of_life("its imports")
    if os.getppid() != int(os.environ.pop(_PARENT)):
        sys.exit("the parent process has ended")
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
    _GUARDS.append(subprocess.Popen(guard, stdin=subprocess.DEVNULL))
    return Connection(int(sys.argv[1]))
