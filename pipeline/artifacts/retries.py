"""What earlier starts of a stage came to: whether starting it again still makes sense."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.errors import ExitCode

MAX_STARTS_IN_VAIN = 3
IN_VAIN = "died_in_vain"
"""Key of exit.json: a worker was killed, and nothing had been committed since the start."""


def committed(folder: Path) -> list[tuple[str, int]]:
    """Returns what stands in a stage's ledger and checkpoints: the same again means no progress."""
    paths = [*(folder / "_ledger").glob("*.jsonl"), *(folder / "checkpoints").glob("*/commit.json")]
    return sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)


def repeats_in_vain(log_folder: Path) -> bool:
    """Returns whether this start, of `logs/start_NNN` and in vain itself, is one too many in a row."""
    number = int(log_folder.name.removeprefix("start_"))
    before = [number - back for back in range(1, MAX_STARTS_IN_VAIN)]
    return all(_was_in_vain(log_folder.parent / f"start_{earlier:03d}") for earlier in before)


def _was_in_vain(log_folder: Path) -> bool:
    try:
        record = json.loads((log_folder / "exit.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(record.get(IN_VAIN)) and record["code"] == ExitCode.STOPPED
