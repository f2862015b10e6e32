"""Which shards of a stage are committed: one line each, one file per writer, readers take the union."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pipeline.artifacts.disk import fsync, writer_name
from pipeline.ids import digest


@dataclass(frozen=True)
class Entry:
    """A committed shard. One line covers all of its tables: they are all there, or none is."""

    index: int  # place in the plan
    generation: int  # 0; higher where a line supersedes an earlier one
    files: dict[str, dict[str, Any]]  # table -> {path, rows, bytes, sha256}; path from the stage's folder on
    done: int  # items that came out well
    failed: dict[str, int] = field(default_factory=dict)  # kind -> items
    skipped: dict[str, int] = field(default_factory=dict)  # kind -> items that were not tried
    struck: bool = False  # the shard counts as not committed after all
    seconds: float = 0.0  # that went into it, where a stage says so


def append(folder: Path, entry: Entry) -> None:
    """Adds a durable line to this writer's file under `<folder>/_ledger/`."""
    ledger = folder / "_ledger"
    ledger.mkdir(exist_ok=True)
    record = dataclasses.asdict(entry)
    line = json.dumps({**record, "check": digest("line", record)}) + "\n"
    with (ledger / f"{writer_name()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    fsync(ledger)
    fsync(folder)


def read(folder: Path) -> tuple[dict[int, Entry], list[str]]:
    """Returns the committed shards by index, and a warning for each line that is torn or damaged.

    Of several lines for one shard the highest generation wins, then the smaller digest: every reader
    chooses the same.
    """
    lines, warnings = _lines(folder)
    chosen: dict[int, Entry] = {}
    for entry, _ in sorted(lines, key=lambda pair: (-pair[0].generation, pair[1])):
        chosen.setdefault(entry.index, entry)
    return {index: chosen[index] for index in sorted(chosen) if not chosen[index].struck}, warnings


def next_generation(folder: Path, index: int) -> int:
    """Returns a generation above every line of this shard, struck ones included."""
    return 1 + max((entry.generation for entry, _ in _lines(folder)[0] if entry.index == index), default=-1)


def _lines(folder: Path) -> tuple[list[tuple[Entry, str]], list[str]]:
    """Returns every sound line with its digest, and warnings about the others."""
    lines, warnings = [], []
    for path in sorted((folder / "_ledger").glob("*.jsonl")):
        for number, text in enumerate(path.read_bytes().split(b"\n"), 1):
            if not text:
                continue
            try:
                record = json.loads(text)
                check = record.pop("check")
                if check != digest("line", record):
                    raise ValueError("digest differs")
                lines.append((Entry(**record), check))
            except (ValueError, KeyError, TypeError, AttributeError):
                warnings.append(f"{path}: line {number} is torn or damaged; its shard will be made again")
    return lines, warnings


def _without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: number for kind, number in sorted(counts.items()) if number}


@dataclass(frozen=True)
class Counts:
    """Accounting: planned = done + failed (by kind) + skipped (by kind)."""

    planned: int
    done: int
    failed: dict[str, int]
    skipped: dict[str, int]

    @classmethod
    def of(cls, planned: int, parts: Iterable[tuple[int, Mapping[str, int], Mapping[str, int]]]) -> Self:
        """Returns the sum of (done, failed, skipped) parts beside what was planned."""
        done, failed, skipped = 0, Counter[str](), Counter[str]()
        for one, two, three in parts:
            done += one
            failed.update(two)
            skipped.update(three)
        return cls(planned, done, _without_zeros(failed), _without_zeros(skipped))

    @property
    def balanced(self) -> bool:
        """Whether every planned item ended as one of the three."""
        return self.planned == self.done + sum(self.failed.values()) + sum(self.skipped.values())

    @property
    def failed_share(self) -> float:
        """Failed over planned, 0 when nothing was planned."""
        return sum(self.failed.values()) / max(1, self.planned)

    def __str__(self) -> str:
        def kinds(counts: dict[str, int]) -> str:
            inner = ", ".join(f"{kind} {number}" for kind, number in counts.items())
            return f"{sum(counts.values())}{f' ({inner})' if inner else ''}"

        return (
            f"planned {self.planned} {'=' if self.balanced else '!='} done {self.done} "
            f"+ failed {kinds(self.failed)} + skipped {kinds(self.skipped)}"
        )
