"""What earlier starts of a stage left in its logs, and whether they got on."""

import json
from pathlib import Path
from typing import Any


def next_start(folder: Path) -> int:
    """Returns the number of the next start of a stage."""
    numbers = [int(path.name[6:]) for path in (folder / "logs").glob("start_*") if path.name[6:].isdigit()]
    return max(numbers, default=-1) + 1


def committed(folder: Path) -> dict[str, int]:
    """Returns the sizes of a stage's ledger and checkpoints: the same again means no progress."""
    paths = [*folder.glob("_ledger/*.jsonl"), *folder.glob("checkpoints/*/commit.json")]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def lost_at(log_folder: Path) -> Any:
    """Returns what was committed when an earlier start lost a worker; None if it ended otherwise."""
    try:
        return json.loads((log_folder / "exit.json").read_bytes())["lost_at"]
    except (OSError, ValueError, KeyError):
        return None
