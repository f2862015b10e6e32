"""Child processes that serve this one over a pipe and die with it.

Heavy libraries that own their process (vLLM's engine, DeepSpeed's ranks) run in one each: their memory,
threads, signals and crashes stay out of the stage's process, which keeps the ledger and the lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from pipeline.errors import ArtifactError, ExitCode

_LOG_LINES = 12  # of a dead worker, in the error message
_PARENT = "VDAPO_PARENT_PID"


class WorkerDiedError(ArtifactError):
    """A child process was ended while it was needed. Exit code 75: what is committed stays, run again."""


class WorkerFailedError(WorkerDiedError):
    """A child process ended itself over an error that it reports. Exit code 1: it would do so again."""


class Worker:
    """A child process running `python -m module`, and the pipe to it.

    It has a session of its own, so a Ctrl-C meant for the stage does not reach it, and the kernel kills it
    when the stage dies. The module calls `connect_to_parent` first. `env` is set over this process's
    environment. The output goes to the file `log`, or is kept as long as the process lives.
    """

    def __init__(
        self, module: str, name: str, *, env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.name = name
        self.connection, theirs = Pipe()  # to wait on; `send` and `receive` do the rest
        self._log_path = log
        self._log = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115 - lives as long
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **(env or {}), _PARENT: str(os.getpid())},
        )
        theirs.close()
        self._finalizer = weakref.finalize(self, _end, self._process, self._log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Sends a message. Raises WorkerDiedError."""
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self.death() from error

    def receive(self, timeout: float | None = None) -> Any:
        """Returns the next message; a worker that is silent for more than `timeout` seconds is killed.

        Raises WorkerDiedError if it was killed, WorkerFailedError if it ended itself over an error.
        """
        try:
            if self.connection.poll(timeout):
                return self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self.death() from error
        raise self.death(f"did not answer within {timeout:.0f} s")

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
        """Returns the last lines of its output."""
        if self._log.closed:
            return "  (nothing)"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 16384))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        words = "\n".join(f"  {line}" for line in lines[-_LOG_LINES:]) or "  (nothing)"
        return words if self._log_path is None else f"{words}\n  (all of them: {self._log_path})"

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
    if os.getppid() != int(os.environ.pop(_PARENT)):
        sys.exit("the parent process has ended")
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
    _GUARDS.append(subprocess.Popen(guard, stdin=subprocess.DEVNULL))
    return Connection(int(sys.argv[1]))
