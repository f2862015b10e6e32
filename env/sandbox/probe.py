"""What this machine can confine: attacks on each wall, tried by a confined program, that all have to fail."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from env.sandbox.host import UnavailableError
from env.sandbox.outcome import Limits, Outcome

if TYPE_CHECKING:
    from pydantic import JsonValue

LIMITS = Limits(seconds=10.0, memory_mb=256)

ATTACKS = """
import os, signal, socket, sys

def reads():
    open(argument["file"]).read()

def looks_up():
    for file in argument["installed"]:
        try:
            open(file).read()
        except OSError:
            continue
        return
    raise OSError

def writes():
    open(argument["file"], "a").write("x")

def creates():
    open(argument["file"] + ".new", "w").write("x")

def connects():
    socket.create_connection(("127.0.0.1", argument["port"]), timeout=1.0)

def signals():
    os.kill(os.getppid(), 0)

def allocates():
    bytearray(argument["bytes"])

def inherits():
    dict(os.environ)["PYTHONHASHSEED"]

def forks():
    if os.fork() == 0:
        os._exit(0)

def imports():
    try:
        import colorsys
    except Exception:
        return
    raise OSError

holes = []
for attack in (reads, looks_up, writes, creates, connects, signals, allocates, inherits, forks, imports):
    try:
        attack()
    except Exception:
        continue
    holes.append(attack.__name__)
deliver(holes)
"""

MEANING = {
    "reads": "a file outside can be read",
    "looks_up": "installed packages can be read, and with them what this project judges by",
    "writes": "a file outside can be changed",
    "creates": "a file can be made outside",
    "connects": "the network can be reached",
    "signals": "another process can be signalled",
    "allocates": "memory has no limit",
    "inherits": "the environment can be read",
    "forks": "a process can be started",
    "imports": "the standard library cannot be read by the user that a confined process becomes",
}
"""Attack -> what is wrong where it succeeds."""


def holes(run: Callable[[str, JsonValue, Limits], Outcome]) -> list[str]:
    """Returns what is wrong, one for each attack that succeeds; nothing where confinement holds.

    Raises:
        UnavailableError: the attacks could not be tried.
    """
    with tempfile.TemporaryDirectory(prefix="vdapo-probe-") as folder, socket.socket() as listener:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "file")
        with open(path, "w", encoding="ascii") as file:
            file.write("outside")
        os.chmod(path, 0o666)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        size = 2 * LIMITS.memory_mb * 2**20
        argument: JsonValue = {
            "file": path,
            "installed": [*_installed()],
            "port": listener.getsockname()[1],
            "bytes": size,
        }
        outcome = run(ATTACKS, argument, LIMITS)
    if outcome.status != "ok" or not isinstance(outcome.value, list):
        raise UnavailableError(f"{outcome.status}: {outcome.stderr.strip()[-500:]}")
    return [MEANING[str(name)] for name in outcome.value]


def _installed() -> Iterator[str]:
    """Yields a file of this project, and one of each folder of packages that this process imports from."""
    yield __file__
    for folder in sys.path:
        if folder.endswith("-packages") and (file := next(Path(folder).glob("*/*.py"), None)):
            yield str(file)
