"""The kinds of error a stage may end with, and the exit code of each.

A message says what is wrong, what was got, what is allowed, and the next move. Anything else that
escapes a stage is a defect and exits 1.
"""

import contextlib
import errno
import os
import re
import shutil
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """What a stage's exit status means; documented in README.md."""

    COMPLETE = 0
    DEFECT = 1  # an unexpected exception, or counts that do not balance
    CONFIG = 2  # usage or configuration
    ARTIFACT = 3  # an artifact is missing, stale, damaged or made with other settings
    QUALITY = 4  # quality refused: a failed gate, divergence, a failed log-probability probe
    FAILED_ITEMS = 5  # too many failed items
    LOCKED = 73  # another process holds the stage
    DISK = 74  # disk full or an I/O error
    STOPPED = 75  # stopped early: run the same command again


class ConfigError(ValueError):
    """A setting or a command line is wrong; nothing has been done yet. Exit code 2."""

    code = ExitCode.CONFIG


class ArtifactError(RuntimeError):
    """A stage cannot go on with what it found; its code says which promise would break."""

    def __init__(self, message: str, code: ExitCode = ExitCode.ARTIFACT) -> None:
        super().__init__(message)
        self.code = code


class DivergenceError(ArtifactError, FloatingPointError):
    """A loss or gradient is not finite, and the weights have not changed. Exit code 4."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ExitCode.QUALITY)


FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_error(error: BaseException) -> OSError | None:
    """Returns the error of a disk that is full, read-only or broken; None for any other error.

    safetensors has its own kind of error, and says in words which one it was.
    """
    if type(error).__name__ == "SafetensorError" and (found := re.search(r"\(os error (\d+)\)", str(error))):
        error = OSError(int(found[1]), os.strerror(int(found[1])))
    if isinstance(error, OSError) and error.errno in (*FULL, errno.EIO, errno.EROFS):
        return error
    return None


def explain(error: BaseException, folder: Path) -> tuple[ExitCode, str] | None:
    """Returns exit code and message of an error that the user or the machine can mend; None for a defect.

    Missing files and dead connections are defects of the program, unless the file is one of `folder`, which
    the command works on: then somebody removed it.
    """
    if isinstance(error, ConfigError | ArtifactError):
        return ExitCode(error.code), str(error)
    error = disk_error(error) or error
    if not isinstance(error, OSError) or isinstance(error, ConnectionError | TimeoutError):
        return None
    path = Path(str(error.filename or ""))
    if isinstance(error, FileNotFoundError) and not path.is_relative_to(folder):
        return None
    if error.errno in FULL:
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({folder}: {shutil.disk_usage(folder).free / 1e6:.0f} MB free)"
        advice = f"{free}. Next: make room"
    elif error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY):
        advice = ". Next: remove what is in the way there"
    else:
        advice = ". Next: make that path readable and writable, or choose another run.data_dir"
    return ExitCode.DISK, f"{error}{advice}, then the same command goes on"
