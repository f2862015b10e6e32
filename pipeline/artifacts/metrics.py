"""metrics.jsonl: one line of numbers per update or iteration. A sink that fails never ends a run."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

STEP_KEYS = ("iteration", "update")


class Metrics:
    """Appends lines to a file, each with the number of this start; `warn` is called once if writing fails."""

    def __init__(self, path: Path, start: int, warn: Callable[[str], None]) -> None:
        self.path = path
        self.start = start
        self._warn = warn
        self._failed = False

    def write(self, values: Mapping[str, Any]) -> None:
        """Adds a line; NaN and infinities are kept, as text. Never raises on a full disk or an odd value."""
        try:
            line = json.dumps(plain({**values, "start": self.start, "time": time.time()}), allow_nan=False)
            with self.path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        line = f"\n{line}"  # below what a killed start, or a full disk, has left half
                file.write(f"{line}\n".encode())
        except (OSError, TypeError, ValueError) as error:
            if not self._failed:
                self._failed = True
                self._warn(f"metrics are not written any more ({error}); the run goes on without them")


def plain(value: Any) -> Any:
    """Returns a value as JSON data; numpy and torch scalars become numbers, NaN and infinities text.

    Example:
        >>> plain({"a": float("nan"), "b": (1, 2.5)})
        {'a': 'nan', 'b': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "item") and not isinstance(value, float):
        return plain(value.item())
    number = float(value)
    return number if math.isfinite(number) else str(number)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a metrics file as one undisturbed history.

    A start that goes on from a checkpoint repeats some updates; the earlier start's lines from there on are
    left out, and so are torn lines. NaN and infinities come back as floats.
    """
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            lines.append(json.loads(text))
    kept: list[dict[str, Any]] = []
    first: dict[tuple[str, int], float] = {}  # (key, start) -> where that start began
    for line in reversed(lines):
        key = next((key for key in STEP_KEYS if isinstance(line.get(key), int | float)), None)
        if key is not None:
            later = (
                place for (other, start), place in first.items() if other == key and start > line["start"]
            )
            if line[key] >= min(later, default=math.inf):
                continue
            first[key, line["start"]] = line[key]
        kept.append({k: float(v) if v in ("nan", "inf", "-inf") else v for k, v in line.items()})
    return kept[::-1]
