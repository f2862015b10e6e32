"""The one schema of results: rows of seed, variant, metric, value, low, high, n, written and read."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts.disk import write_durably
from pipeline.statistics import Interval

DIGITS = 4  # significant ones, of what is written


@dataclass(frozen=True)
class Row:
    """One figure of a variant, with its 95 % interval (or least and largest of repeats) and its number."""

    variant: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


Figure = float | int | bool | None | Interval | Sequence[float | None]
"""A number, an interval, or (value, low, high)."""


def measured(variant: str, figures: Mapping[str, Figure], n: int | None = None) -> list[Row]:
    """Returns a row for each figure of a variant; a number that is not finite becomes null.

    Example:
        >>> measured("vllm", {"seconds": (2.0, 1.0, 3.0)}, n=3)
        [Row(variant='vllm', metric='seconds', value=2.0, low=1.0, high=3.0, n=3)]
    """
    rows = []
    for metric, found in figures.items():
        if isinstance(found, Interval):
            numbers: Sequence[float | None] = (found.value, found.low, found.high)
        else:
            numbers = found if isinstance(found, Sequence) else (found, None, None)
        value, low, high = (None if x is None or not math.isfinite(x) else x for x in numbers)
        rows.append(Row(variant, metric, value, low, high, n))
    return rows


def spread(numbers: Sequence[float]) -> tuple[float, float, float]:
    """Returns (median, least, largest) of repeats."""
    return statistics.median(numbers), min(numbers), max(numbers)


def ratios(ours: Sequence[float], peers: Sequence[float]) -> tuple[float, float, float]:
    """Returns the spread of ours / peer, each pair from one repeat, so that a slow minute slows both.

    Example:
        >>> ratios([2.0, 6.0], [1.0, 2.0])
        (2.5, 2.0, 3.0)
    """
    return spread([mine / other for mine, other in zip(ours, peers, strict=True)])


class Table:
    """Rows that criteria and pages read by variant and metric."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        self._by_name = {(row.variant, row.metric): row for row in self.rows}

    def row(self, variant: str, metric: str) -> Row:
        """Returns the row of a figure; KeyError if there is none."""
        return self._by_name[variant, metric]

    def __call__(self, variant: str, metric: str, bound: str = "value") -> float:
        """Returns a figure or its bound `low` or `high`; an undefined one is NaN and passes no comparison."""
        found = getattr(self.row(variant, metric), bound)
        return math.nan if found is None else float(found)

    def variants(self, metric: str) -> list[str]:
        """Returns the variants that have a metric, in order."""
        return [row.variant for row in self.rows if row.metric == metric]


Criteria = Mapping[str, Callable[[Table], bool]]
"""Name -> whether the rows show it."""


def at_least(least: float, variant: str, metric: str) -> Callable[[Table], bool]:
    """Returns the criterion that a figure is this or more."""
    return lambda t: t(variant, metric) >= least


def surely_positive(variant: str, metric: str) -> Callable[[Table], bool]:
    """Returns the criterion that a figure is above 0, its interval's lower bound included."""
    return lambda t: t(variant, metric, "low") > 0


def judge(rows: Iterable[Row], criteria: Criteria) -> dict[str, bool]:
    """Returns criterion -> whether the rows meet it; what is missing or undefined is not met."""
    table, verdicts = Table(rows), {}
    for name, met in criteria.items():
        try:
            verdicts[name] = bool(met(table))
        except KeyError:
            verdicts[name] = False
    return verdicts


def written(number: float | None) -> Any:
    """Returns a number as results keep it: whole ones as they are, others in four digits."""
    if number is None or number == int(number):
        return None if number is None else int(number)
    return float(f"{number:.{DIGITS}g}")


def write_results(path: Path, head: Mapping[str, Any], rows: Sequence[Row], seed: int) -> None:
    """Writes command, commit, machine and criteria, then a line for each row; null bounds are left out."""
    lines = []
    for row in rows:
        kept = {"seed": seed} | {
            k: written(v) if k in ("value", "low", "high") else v for k, v in asdict(row).items()
        }
        shown = {k: v for k, v in kept.items() if v is not None or k == "value"}
        lines.append(json.dumps(shown, separators=(",", ":")))
    body = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, body.encode())


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a results file."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    return [Row(**{name: x for name, x in row.items() if name != "seed"}) for row in rows]


def remembered(path: Path, key: str, make: Callable[[], list[Row]]) -> list[Row]:
    """Returns the rows that a file keeps under this key, or makes and keeps them: a killed call goes on."""
    if path.is_file() and (kept := json.loads(path.read_text("utf-8")))["key"] == key:
        return [Row(**row) for row in kept["rows"]]
    rows = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps({"key": key, "rows": [asdict(row) for row in rows]}).encode())
    return rows
