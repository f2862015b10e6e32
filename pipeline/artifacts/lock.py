"""One process per stage, or per shard: a kernel lock, and a lease for file systems that ignore it."""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts.disk import STALE_SECONDS, host_name, process_start
from pipeline.errors import ArtifactError, ExitCode

HEARTBEAT_SECONDS = 30.0
LEAD = "_lock"
"""Lock of the process that leads a stage: it alone plans, merges and publishes."""

CLAIMS = "_claims"
"""Folder of locks that are called as the shards are which leader and helpers play at the moment."""


class Lock:
    """Holds the file `name` of a folder from construction to `release`.

    The kernel frees the lock with its owner, so a killed process leaves nothing to clean up. It is opened
    close-on-exec: an inherited descriptor would keep it alive. Where a network file system ignores it the
    lease written into the file decides: on this host by pid and start time, on others by a heartbeat.

    Raises ArtifactError with code LOCKED, naming host, pid and age of the other process.
    """

    def __init__(self, folder: Path, name: str = LEAD) -> None:
        self.path = folder / name
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise self._refusal() from None
        except OSError:
            pass  # no kernel locks here: the lease alone decides
        if holder(folder, name):
            os.close(self._fd)
            raise self._refusal()
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
