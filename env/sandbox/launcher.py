"""A process that has loaded what its children need and forks a confined one for each job.

It never reads what a model wrote: programs and texts go from the sandbox to the child over a channel of their
own. It runs with one thread, an empty environment, and the walls of `env.sandbox.walls` around its children.

    python -s -S -P launcher.py CONTROL SETUP

CONTROL is the descriptor of a socket, SETUP is JSON: root (of this project), folder (empty), path (where to
import from), readable (what children may read besides the standard library), hidden (folders in it that they
may not read, nor other packages; null: they may), modules (to load), without (walls to leave off). It says
lines of JSON: {"walls": ...} when it is ready, or {"refused": text} of a wall, {"error": text} of a module.
Each order comes with descriptors of channel, stdout and stderr; it is answered by {"pid": ...} and, when the
child has ended, {"ended": status, "cpu": seconds}. A "k" kills the child; the end of the socket kills it and
ends the launcher.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from env.sandbox.walls import Walls

CHANNEL = 3
"""The descriptor of a child's channel; below it are the standard ones."""

READY = b"\1"
"""What a child sends when it is confined; before that it has read nothing."""


def main() -> None:
    """Builds the walls, loads the modules, serves orders."""
    control = socket.socket(fileno=os.dup(int(sys.argv[1])))  # a low number, as a child closes the low ones
    os.close(int(sys.argv[1]))
    setup = json.loads(sys.argv[2])
    os.environ.clear()
    if control.fileno() != CHANNEL:
        os.dup2(0, CHANNEL)  # keeps the place free that the channel has in a child
    try:
        walls = _walls(setup)
    except Exception as error:  # whatever a module does when it is loaded
        kind = "refused" if isinstance(error, OSError) else "error"
        _say(control, {kind: f"{type(error).__name__}: {error}"})
        return
    child_ended, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()
    _say(control, {"walls": walls.names})
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 3)
        if descriptors:
            walls.clean()
            order = json.loads(data.lstrip(b"k"))  # k: for a child that had ended by itself
            pid = _fork(walls, order, descriptors)
            _serve(control, child_ended, pid)
            if not walls.seccomp:  # else it had no way to leave anybody behind
                with suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
        elif not data:
            return


def _walls(setup: dict[str, Any]) -> Walls:
    """Returns the walls, closed, after everything is loaded that only this side of them can load."""
    own = list(sys.path)
    sys.path[:] = [*own, *setup["path"], setup["root"]]
    from env.sandbox.packages import packages_in
    from env.sandbox.walls import Walls

    readable = [*own, *setup["readable"]]
    hidden = [] if setup["hidden"] is None else packages_in(readable, setup["hidden"], own)
    walls = Walls(setup["folder"], setup["without"])
    for name in ("env.sandbox.guest", *setup["modules"]):
        importlib.import_module(name)
    sys.path[:] = [*own, *setup["path"]]
    walls.close(readable, hidden)
    return walls


def _fork(walls: Walls, order: dict[str, Any], descriptors: list[int]) -> int:
    """Returns the process id of a child that serves on the descriptors, which are closed here."""
    pid = os.fork()
    if pid == 0:
        _be_child(walls, order, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _be_child(walls: Walls, order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    try:
        from env.sandbox.guest import serve

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        channel, out, err = descriptors
        for place, descriptor in enumerate((null, out, err, channel)):
            os.dup2(descriptor, place)
        walls.confine(order["seconds"], order["memory_mb"])
        os.closerange(CHANNEL + 1, 256)
        os.write(CHANNEL, READY)
        serve(CHANNEL)
    except BaseException as error:  # nothing may go on in a process that is not confined
        os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(1)


def _serve(control: socket.socket, child_ended: int, pid: int) -> None:
    """Says who the child is, and how it ended; kills it when told to, or when nobody listens."""
    listening = _say(control, {"pid": pid})
    if not listening:
        _kill(pid)
    while True:
        sources = [child_ended, *([control.fileno()] if listening else [])]
        ready, _, _ = select.select(sources, [], [])
        if control.fileno() in ready:
            listening = bool(control.recv(1))
            _kill(pid)
        if child_ended in ready:
            os.read(child_ended, 4096)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                break
    if listening:
        cpu = usage.ru_utime + usage.ru_stime
        _say(control, {"ended": os.waitstatus_to_exitcode(status), "cpu": cpu})


def _say(control: socket.socket, what: dict[str, Any]) -> bool:
    """Sends a line; returns whether anybody is there."""
    try:
        control.sendall(json.dumps(what).encode() + b"\n")
    except OSError:
        return False
    return True


def _kill(pid: int) -> None:
    """Kills a child and its process group, which it may not have made yet."""
    for kill in (os.killpg, os.kill):
        with suppress(OSError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
