"""Files that survive a power cut: written beside their place, flushed, then renamed or linked into it."""

import errno
import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import FULL, ArtifactError, ConfigError
from pipeline.ids import digest, file_sha256
from pipeline.processes.failpoints import failpoint

STALE_SECONDS = 120.0  # without a heartbeat for so long, a process on another host counts as dead


def process_start(pid: int) -> int | None:
    """Returns when a process of this host began, in kernel ticks; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def host_name() -> str:
    """Returns this machine's name without characters that file names or writer names use."""
    return re.sub(r"[^A-Za-z0-9.]", ".", socket.gethostname())[:60] or "host"


def writer_name() -> str:
    """Returns the name of this process among all that ever wrote here: host, pid, start time."""
    return f"{host_name()}_{os.getpid()}_{process_start(os.getpid())}"


def fsync(path: Path) -> None:
    """Makes a file's content durable, or a folder's entries."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def made_durable(path: Path) -> dict[str, Any]:
    """Makes a file's content durable; returns its size and SHA-256, as ledgers and manifests list them."""
    fsync(path)
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def temporary(path: Path) -> Path:
    """Returns where this process writes `path` before it is published; see `remove_temporaries`."""
    return path.with_name(f".{path.name}-{writer_name()}.tmp")


def write_durably(path: Path, data: bytes, point: str | None = None) -> None:
    """Replaces a file atomically and durably; the failpoint `<point>.temporary` comes just before."""
    draft = _draft(path, data)
    if point is not None:
        failpoint(f"{point}.temporary")
    os.replace(draft, path)
    fsync(path.parent)


def _draft(path: Path, data: bytes) -> Path:
    name = temporary(path)
    with name.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return name


def publish_once(path: Path, data: bytes, point: str) -> bool:
    """Creates a file atomically and durably; returns False, changing nothing, if it is there already.

    The failpoints `<point>.temporary` and `<point>.published` surround the moment of truth.
    """
    name = _draft(path, data)
    failpoint(f"{point}.temporary")
    try:
        os.link(name, path)
    except FileExistsError:
        name.unlink()
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        if path.exists():  # a file system without links
            name.unlink()
            return False
        os.rename(name, path)
    name.unlink(missing_ok=True)
    fsync(path.parent)
    failpoint(f"{point}.published")
    return True


def remove_temporaries(folder: Path, keep: Callable[[Path], object] = lambda path: False) -> list[Path]:
    """Removes temporary files from a folder and returns them, but for those that somebody still writes."""
    gone = [path for path in sorted(folder.glob(".*.tmp")) if not keep(path)]
    for path in gone:
        path.unlink(missing_ok=True)
    return gone


@contextmanager
def _must_be_usable(folder: Path, setting: str) -> Iterator[None]:
    """Raises ConfigError for what keeps a folder from being one; its message begins with `setting`."""
    try:
        yield
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in FULL:
            raise
        raise ConfigError(
            f"{setting}: {folder} cannot be a folder ({error}). Allowed: one that can be written, or a path "
            "where one can be made. Next: name another, or remove what is in the way"
        ) from None


def check_folder(folder: Path, setting: str) -> None:
    """Raises ConfigError if anything but a folder is there."""
    with _must_be_usable(folder, setting), suppress(FileNotFoundError):
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def make_folder(folder: Path, setting: str) -> None:
    """Makes a folder and those above it; raises ConfigError if it cannot, but for a full disk."""
    with _must_be_usable(folder, setting):
        folder.mkdir(parents=True, exist_ok=True)


def sealed(record: dict[str, Any]) -> bytes:
    """Returns a record as JSON with the digest of its own content: a single flipped bit is noticed."""
    plain = json.loads(json.dumps(record, allow_nan=False))
    plain["digest"] = digest("record", plain)
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def unsealed(path: Path) -> dict[str, Any]:
    """Returns what `sealed` wrote; raises FileNotFoundError, or ArtifactError for what is damaged."""
    if path.is_dir():
        raise ArtifactError(f"{path}: damaged (a folder where a file belongs)")
    whole = path.read_bytes()
    try:
        record = json.loads(whole)
        del record["digest"]
        again = sealed(record)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: damaged ({type(error).__name__}: {str(error)[:100]})") from None
    # Byte for byte: two spellings of one number would have the same digest.
    if whole != again:
        raise ArtifactError(f"{path}: damaged or edited by hand (its digest does not match its content)")
    return record


def inside(folder: Path, relative: str) -> Path:
    """Returns `folder / relative`; raises ArtifactError if it leaves the folder or passes a symbolic link."""
    pure = PurePosixPath(relative)
    if not relative or pure.is_absolute() or ".." in pure.parts or "\\" in relative or "\0" in relative:
        raise ArtifactError(f"{folder}: path {relative!r} must be relative and stay inside this folder")
    path = folder
    for part in pure.parts:
        path = path / part
        if path.is_symlink():
            raise ArtifactError(f"{path}: a symbolic link; a stage's folder holds plain files only")
    return path


def damage(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """Returns what is wrong at first sight with a file that a ledger or manifest lists; None if nothing."""
    path = inside(folder, facts["path"])
    if not path.is_file():
        return f"{path}: missing, though it is listed"
    size = path.stat().st_size
    return f"{path}: {size} bytes, listed with {facts['bytes']}" if size != facts["bytes"] else None


def verified(folder: Path, relative: str, sha256: str, hint: str = "") -> Path:
    """Returns a file of a folder that has this SHA-256; else raises ArtifactError, with the hint."""
    path = inside(folder, relative)
    if not path.is_file() or file_sha256(path) != sha256:
        state = "damaged (SHA-256 differs)" if path.is_file() else "missing"
        raise ArtifactError(f"{path}: {state}. {hint}".rstrip())
    return path
