"""What the benchmarks share: memory of this process, ratios with their spread, verdicts in a file."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

Criteria = Mapping[str, Callable[[Any], bool]]
"""What must be shown; name -> whether results show it."""


def status_bytes(field: str) -> int:
    """Returns a field of /proc/self/status in bytes, such as VmRSS (resident) or VmHWM (its peak).

    Raises:
        ValueError: there is no such field.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def spread(numbers: Sequence[float]) -> dict[str, float]:
    """Returns median, least and largest of repeats.

    Example:
        >>> spread([3.0, 1.0, 2.0])
        {'median': 2.0, 'min': 1.0, 'max': 3.0}
    """
    return {"median": statistics.median(numbers), "min": min(numbers), "max": max(numbers)}


def ratios(ours: Sequence[float], peers: Sequence[float]) -> dict[str, float]:
    """Returns the spread of ours / peer, each pair from one repeat, so that a slow minute slows both.

    Example:
        >>> ratios([2.0, 6.0], [1.0, 2.0])
        {'median': 2.5, 'min': 2.0, 'max': 3.0}
    """
    return spread([mine / other for mine, other in zip(ours, peers, strict=True)])


def judge(results: Any, criteria: Criteria) -> dict[str, bool]:
    """Returns criterion -> whether the results meet it; what is missing or undefined is not met."""
    verdicts = {}
    for name, met in criteria.items():
        try:
            verdicts[name] = bool(met(results))
        except (KeyError, TypeError, StopIteration):
            verdicts[name] = False
    return verdicts


def conclude(path: Path, results: dict[str, Any], criteria: Criteria) -> int:
    """Prints a verdict for each criterion and writes the results with them; returns 1 if one is not met."""
    verdicts = judge(results, criteria)
    width = max(map(len, verdicts))
    print()
    for name, met in verdicts.items():
        print(f"{name.ljust(width)}  {'PASS' if met else 'FAIL'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**results, "criteria": verdicts}, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
    return 0 if all(verdicts.values()) else 1
