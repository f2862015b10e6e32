"""The kinds of error a stage may end with, and the exit code of each.

A message says what is wrong, what was got, what is allowed, and the next move. Anything else that
escapes a stage is a defect and exits 1.
"""

from __future__ import annotations

from enum import IntEnum


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
