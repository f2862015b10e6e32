"""This side of a launcher: starts it, orders confined processes from it, has them killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from env.sandbox import launcher
from pipeline.errors import ConfigError

ROOT = Path(__file__).parents[2]
START_SECONDS, ANSWER_SECONDS = 120.0, 30.0  # that a launcher has to start, and to fork or to kill

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # a verdict is a function of the program
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",  # a launcher that forks has one thread
    "OPENBLAS_NUM_THREADS": "1",
}


class UnavailableError(RuntimeError):
    """The machine gave no launcher or no confined process; nobody's answer is to blame."""


class Launcher:
    """A process that forks confined ones, one at a time.

    Args:
        modules: of this project, to load before a child is confined; none for programs.
        preload: modules of the standard library, to load too.
        without: walls to leave off.

    Raises:
        ConfigError: a module cannot be loaded.
        UnavailableError: the machine starts no process, or refuses a wall.
    """

    def __init__(self, modules: Sequence[str], preload: Sequence[str], without: Sequence[str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="vdapo-sandbox-")
        os.chmod(self._folder, 0o755)  # its child is another user
        packages = [path for path in sys.path if os.path.isdir(path)]
        ours = [path for path in packages if not os.path.samefile(path, ROOT) and path != os.getcwd()]
        libraries = os.environ.get("LD_LIBRARY_PATH", "")  # without it some Pythons do not start
        setup = {
            "root": str(ROOT),
            "folder": os.path.realpath(self._folder),
            "path": [*packages, str(ROOT)] if modules else [],
            "readable": [
                *(os.path.join(prefix, "lib") for prefix in (sys.base_prefix, sys.base_exec_prefix)),
                *_LIBRARIES,
                *filter(None, libraries.split(":")),
                *([*ours, f"{ROOT}/env", f"{ROOT}/pipeline"] if modules else []),
            ],
            "hidden": None if modules else [*map(os.path.abspath, packages), str(ROOT)],
            "modules": [*preload, *modules],
            "without": list(without),
        }
        self.is_broken = False  # whether it has failed to answer, and can only be closed
        self._said = b""
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-s", "-S", "-P", "-B", launcher.__file__]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno()), json.dumps(setup)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                    env={**_ENVIRONMENT, "LD_LIBRARY_PATH": libraries},
                )
        except OSError as error:
            self._control.close()
            os.rmdir(self._folder)
            raise UnavailableError(f"no launcher starts: {error}") from error
        try:
            hello = self.hear(START_SECONDS)
            if "refused" in hello:
                raise UnavailableError(f"the walls cannot be built: {hello['refused']}")
            if "error" in hello:
                raise ConfigError(f"the sandbox cannot load {' '.join(modules)}: {hello['error']}")
        except BaseException:
            self.close()
            raise
        self.walls: list[str] = hello["walls"]
        if "namespaces" in self.walls:
            os.rmdir(self._folder)  # it has a root of its own by now

    @property
    def control(self) -> socket.socket:
        """Where it says how a child ended."""
        return self._control

    def order(self, seconds: float | None, memory_mb: int, descriptors: Sequence[int]) -> int:
        """Returns the process id of a new child that has the descriptors. Raises UnavailableError."""
        words = json.dumps({"seconds": seconds, "memory_mb": memory_mb}).encode()
        try:
            socket.send_fds(self._control, [words], descriptors)
        except OSError as error:
            self.is_broken = True
            raise UnavailableError(f"the launcher has ended: {error}") from error
        return int(self.hear(ANSWER_SECONDS)["pid"])

    def kill_child(self) -> None:
        """Kills the child; returns when it is dead. Raises UnavailableError."""
        with suppress(OSError):
            self._control.sendall(b"k")
        self.hear(ANSWER_SECONDS)

    def hear(self, seconds: float) -> dict[str, Any]:
        """Returns what it says next. Raises UnavailableError if it says nothing."""
        try:
            self._control.settimeout(seconds)
            while b"\n" not in self._said:
                self._said += (data := self._control.recv(4096))
                if not data:
                    raise ConnectionError("it has ended")
        except OSError as error:
            self.is_broken = True
            raise UnavailableError(f"the launcher does not answer: {error}") from error
        line, _, self._said = self._said.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        """Ends it and its child; idempotent."""
        self._control.close()
        try:
            self._process.wait(5.0)  # it kills its child first
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
