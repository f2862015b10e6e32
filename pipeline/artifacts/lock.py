"""One process per stage, or per shard: a kernel lock, and a lease for file systems that ignore it."""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts.disk import STALE_SECONDS, host_name, process_start
from pipeline.artifacts.signals import stop_if_asked
from pipeline.errors import ArtifactError, ExitCode

HEARTBEAT_SECONDS = 30.0
WATCH_SECONDS = 1.5 * HEARTBEAT_SECONDS
"""How long a lease is watched whose process may be dead."""

LEAD = "_lock"
"""Lock of the process that leads a stage: it alone plans, merges and publishes."""

CLAIMS = "_claims"
"""Folder of locks that are called as the shards are which leader and helpers play at the moment."""


class Lock:
    """Holds the file `name` of a folder from construction to `release`.

    The kernel frees the lock with its owner, so a killed process leaves nothing to clean up. It is opened
    close-on-exec: an inherited descriptor would keep it alive. Where a network file system ignores it the
    lease written into the file decides: on this host by pid and start time, on others by a heartbeat.
    `say` is told if that takes a while; without it nothing that might is done.

    Raises ArtifactError with code LOCKED, naming host, pid and age of the other process.
    """

    def __init__(self, folder: Path, name: str = LEAD, say: Callable[[str], None] | None = print) -> None:
        self.path = folder / name
        # The umask decides who else may take it, as it does for all other files of a run.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._must_be_free(say)
        except BaseException:
            os.close(self._fd)
            raise
        lease = {
            "host": host_name(),
            "pid": os.getpid(),
            "process_start": process_start(os.getpid()),
            "boot_id": _boot_id(),
            "since": time.time(),
        }
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(lease).encode(), 0)
        os.fsync(self._fd)  # where the lease alone decides, other hosts see what the server has
        self._released = threading.Event()
        threading.Thread(target=self._beat, name="lock heartbeat", daemon=True).start()

    def _must_be_free(self, say: Callable[[str], None] | None) -> None:
        granted = True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal() from None
        except OSError:
            granted = False  # no kernel locks here: the lease alone decides
        lease = holder(self.path.parent, self.path.name)
        if lease and not (granted and say and lease.get("host") != host_name() and self._is_left(lease, say)):
            raise self._refusal()

    def _is_left(self, lease: Mapping[str, Any], say: Callable[[str], None]) -> bool:
        """Returns whether nobody renews a lease of another host, though its last beat is not old.

        The kernel has granted the lock. So that process is dead, perhaps in a container that has a new name
        since; or each host here has kernel locks of its own, and then a beat will come. No clocks of two
        hosts are compared.
        """
        say(
            f"{self.path.parent}: the lease of {names([lease])} is fresh, though the kernel's lock is free; "
            f"looks for {WATCH_SECONDS:.0f} s whether it is renewed"
        )
        first, until = self._last_beat(), time.monotonic() + WATCH_SECONDS
        while time.monotonic() < until:
            stop_if_asked()
            time.sleep(0.1)
            if self._last_beat() != first:
                return holder(self.path.parent, self.path.name) is None
        return True

    def _last_beat(self) -> int:
        with self.path.open("rb") as file:  # over a network only who opens a file hears what the server has
            return os.fstat(file.fileno()).st_mtime_ns

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._fd)

    def _refusal(self) -> ArtifactError:
        lease = _lease(self.path) or {}
        age = f"{time.time() - lease['since']:.0f} s" if "since" in lease else "unknown"
        return ArtifactError(
            f"{self.path.parent} is held by another process: host {lease.get('host', 'unknown')}, "
            f"pid {lease.get('pid', 'unknown')}, since {age}. Next: let it finish, or stop it and run this "
            f"again (a dead process on another host counts as gone after {STALE_SECONDS:.0f} s)",
            code=ExitCode.LOCKED,
        )

    def release(self) -> None:
        """Gives the lock back; idempotent."""
        if not self._released.is_set():
            self._released.set()
            os.ftruncate(self._fd, 0)
            os.close(self._fd)


def holder(folder: Path, name: str = LEAD) -> dict[str, Any] | None:
    """Returns the lease of the other live process that holds a stage's folder, or None."""
    path = folder / name
    lease = _lease(path)
    if lease is None:
        return None
    if lease.get("host") != host_name():
        return lease if time.time() - path.stat().st_mtime < STALE_SECONDS else None
    if lease.get("pid") == os.getpid() or lease.get("boot_id") != _boot_id():
        return None
    start = process_start(int(lease.get("pid", 0)))
    return lease if start is not None and start == lease.get("process_start") else None


def players(folder: Path) -> list[dict[str, Any]]:
    """Returns the leases of the other live processes that play shards of a stage, one for each shard."""
    claims = folder / CLAIMS
    return [lease for path in sorted(claims.glob("*")) if (lease := holder(claims, path.name))]


def names(leases: Iterable[Mapping[str, Any]]) -> str:
    """Returns which processes have some leases, each once, for people."""
    return ", ".join(sorted({f"pid {lease['pid']} on {lease['host']}" for lease in leases}))


def _lease(path: Path) -> dict[str, Any] | None:
    try:
        lease = json.loads(path.read_bytes()[:10_000])
    except (OSError, ValueError):
        return None
    return lease if isinstance(lease, dict) else None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
