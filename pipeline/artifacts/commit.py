"""The shards of a stage: committed one by one, each with all of its tables or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.artifacts import ledger
from pipeline.artifacts.disk import fsync_file, fsync_folder, inside, remove_dead_temporaries, temporary
from pipeline.artifacts.failpoints import failpoint
from pipeline.artifacts.manifest import repair_hint
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.progress import Progress
from pipeline.errors import ArtifactError
from pipeline.ids import file_sha256
from pipeline.schema import read_parquet, write_parquet

MAX_FAILED_SHARE = 0.02


def make_durable(draft: Path, num_rows: int) -> str:
    """Returns the SHA-256 of a table's file after reading it back: what cannot be read must never be listed.

    Raises:
        OSError: rows were lost.
    """
    if read_parquet(draft).num_rows != num_rows:  # through page checksums
        raise OSError(f"{draft}: rows were lost while writing")
    fsync_file(draft)
    return file_sha256(draft)


@dataclass(frozen=True, slots=True)
class Shard:
    """Items that are committed together: their place in the plan, from 0, and their ids."""

    index: int
    item_ids: tuple[str, ...]


class Shards:
    """The planned shards of a stage, some of them committed by earlier starts.

    Args:
        folder: the stage's.
        stage: its name.
        stage_key: part of the files' names.
        plan: what is to be made.
        say: takes log lines.
        progress: makes the bar of `to_do`, from total, description and what is done already.
        stop_if_asked: ends the stage if a signal came.
    """

    def __init__(
        self,
        folder: Path,
        stage: str,
        stage_key: str,
        plan: Plan[Any],
        *,
        say: Callable[[str], None],
        progress: Callable[[int, str, int], Progress],
        stop_if_asked: Callable[[], None],
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.specs = {spec.name: spec for spec in plan.tables}
        self._stage = stage
        self._key = stage_key
        self._say = say
        self._progress = progress
        self._stop_if_asked = stop_if_asked
        self._shards = [Shard(index, tuple(ids)) for index, ids in enumerate(plan.items)]
        self._entries: dict[int, ledger.Entry] = {}
        self._verified: set[str] = set()
        self._bar: Progress | None = None

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> Shard:
        return self._shards[index]

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def is_committed(self, index: int) -> bool:
        """Returns whether a shard is in the ledger."""
        return index in self._entries

    @property
    def missing(self) -> list[int]:
        """Indices of the shards that are not committed."""
        return [shard.index for shard in self._shards if shard.index not in self._entries]

    def counts(
        self, done: int = 0, failed: Mapping[str, int] | None = None, skipped: Mapping[str, int] | None = None
    ) -> ledger.Counts:
        """Returns what became of the planned items, with some that ended outside any commit."""
        parts = [(e.done, e.failed, e.skipped) for e in self._entries.values()]
        return ledger.Counts.of(self.plan.num_items, [*parts, (done, failed or {}, skipped or {})])

    # -- earlier starts ------------------------------------------------------------------------------------

    def take_over(self, *, repair: bool) -> None:
        """Loads what earlier starts committed: sizes and footers are checked, dead temporary files go.

        Args:
            repair: strike damaged shards, and those with failed items if too many failed; SHA-256 is
                checked too.

        Raises:
            ArtifactError: a committed shard is damaged, and nothing is to be repaired.
        """
        for folder in (self.folder, *(self.folder / "shards" / name for name in self.specs)):
            for path in remove_dead_temporaries(folder) if folder.is_dir() else ():
                self._say(f"removed the unfinished file of a dead process: {path.name}")
        self._entries, warnings = ledger.read(self.folder)
        for warning in warnings:
            self._say(warning)
        for index, entry in list(self._entries.items()):
            problem = self._problem(entry, with_sha=repair)
            if problem and repair:
                self._strike(entry, problem)
            elif problem:
                raise ArtifactError(
                    f"{problem}. Next: make {self._stage} SET=--repair, which makes that shard again"
                )
            elif index >= len(self._shards):
                raise ArtifactError(
                    f"{self.folder}: the ledger has shard {index}, the plan has {len(self._shards)}"
                )
        if repair and self.counts().failed_share > MAX_FAILED_SHARE:
            for entry in [entry for entry in self._entries.values() if sum(entry.failed.values())]:
                self._strike(entry, f"shard {entry.index} has failed items")
        if self._entries:
            self._say(f"resuming: {len(self._entries)} of {len(self._shards)} shards are committed")

    def _problem(self, entry: ledger.Entry, *, with_sha: bool) -> str | None:
        for facts in entry.files.values():
            path = inside(self.folder, facts["path"])
            try:
                if path.stat().st_size != facts["bytes"]:
                    return f"{path}: {path.stat().st_size} bytes, the ledger says {facts['bytes']}"
                if pq.read_metadata(path).num_rows != facts["rows"]:
                    return f"{path}: its number of rows is not the ledger's"
                if with_sha and file_sha256(path) != facts["sha256"]:
                    return f"{path}: its SHA-256 is not the ledger's"
            except FileNotFoundError:
                return f"{path}: missing, though the ledger lists it"
            except (pa.ArrowException, OSError):
                return f"{path}: not a readable Parquet file"
        return None

    def _strike(self, entry: ledger.Entry, why: str) -> None:
        self._say(f"repair: {why}; shard {entry.index} will be made again")
        generation = ledger.next_generation(self.folder, entry.index)
        ledger.append(self.folder, ledger.Entry(entry.index, generation, {}, 0, struck=True))
        del self._entries[entry.index]

    # -- this start ----------------------------------------------------------------------------------------

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Shows how far the stage is, by commits and by `item_done`."""
        with self._progress(self.plan.num_items, self.plan.unit, self._committed_items()) as bar:
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def to_do(self) -> Generator[Shard, None, None]:
        """Yields the shards that are not committed, in order, under a progress bar; stops when asked to."""
        with self.bar():
            for index in self.missing:
                self._stop_if_asked()
                yield self._shards[index]

    def item_done(self, number: int = 1) -> None:
        """Moves the bar on before the items' shard is committed; ends the stage here if it was asked to stop.

        Args:
            number: of items; 0 where there is only the time to ask.
        """
        if number:
            failpoint(f"{self._stage}.item_done")
            if self._bar is not None:
                self._bar.advance(number)
        self._stop_if_asked()

    def commit(
        self,
        index: int,
        tables: Mapping[str, pa.Table],
        *,
        done: int,
        failed: Mapping[str, int] | None = None,
        skipped: Mapping[str, int] | None = None,
        supersede: bool = False,
    ) -> None:
        """Makes a shard count.

        Args:
            index: of the shard.
            tables: one for each table of the plan.
            done: items that came out well.
            failed: items that failed, by kind.
            skipped: items that were not tried, by kind.
            supersede: whether an earlier commit of this shard is replaced.

        Raises:
            ValueError: counts do not add up to the shard's items, a table is missing, unknown or wrong, or
                the shard is committed already.
        """
        where = f"{self._stage}: shard {index}"
        if not 0 <= index < len(self._shards):
            raise ValueError(f"{where} is not planned; the plan has {len(self._shards)} shards")
        if index in self._entries and not supersede:
            raise ValueError(f"{where} is committed already; pass supersede=True to replace it")
        failed = {str(k): int(v) for k, v in (failed or {}).items() if v}
        skipped = {str(k): int(v) for k, v in (skipped or {}).items() if v}
        counts = ledger.Counts.of(len(self._shards[index].item_ids), [(done, failed, skipped)])
        if not counts.balanced or min([done, *failed.values(), *skipped.values()]) < 0:
            raise ValueError(f"{where}: {counts} {self.plan.unit}; every planned item must be counted once")
        if set(tables) != set(self.specs):
            raise ValueError(f"{where}: got tables {sorted(tables)}; planned: {sorted(self.specs)}")
        generation = ledger.next_generation(self.folder, index)  # above a superseded or struck line, else 0
        files = self._write(index, tables)
        entry = ledger.Entry(index, generation, files, done, failed, skipped)
        ledger.append(self.folder, entry)
        failpoint(f"{self._stage}.shard.after_ledger")
        self._entries[index] = entry
        if self._bar is not None:
            self._bar.set(max(self._bar.count, self._committed_items()))

    def _write(self, index: int, tables: Mapping[str, pa.Table]) -> dict[str, dict[str, Any]]:
        failpoint(f"{self._stage}.shard.before_write")
        drafts = {}
        for name, table in tables.items():
            folder = self.folder / "shards" / name
            folder.mkdir(parents=True, exist_ok=True)
            drafts[name] = temporary(folder / f"part-{index:05d}")
            write_parquet(table, self.specs[name], drafts[name])
        failpoint(f"{self._stage}.shard.after_write")
        files: dict[str, dict[str, Any]] = {}
        for name, draft in drafts.items():
            sha = make_durable(draft, tables[name].num_rows)
            files[name] = {
                "path": f"shards/{name}/part-{index:05d}-{self._key[:8]}-{sha[:8]}.parquet",
                "rows": tables[name].num_rows,
                "bytes": draft.stat().st_size,
                "sha256": sha,
            }
        failpoint(f"{self._stage}.shard.after_fsync")
        for name, draft in drafts.items():
            os.replace(draft, self.folder / files[name]["path"])
            fsync_folder(draft.parent)
        for folder in (self.folder / "shards", self.folder):
            if folder.is_dir():
                fsync_folder(folder)
        failpoint(f"{self._stage}.shard.after_rename")
        return files

    def read(self, index: int, table: str) -> pa.Table:
        """Returns one table of a committed shard, its SHA-256 compared on first use.

        Raises:
            ArtifactError: not committed, or damaged.
        """
        if index not in self._entries or table not in self._entries[index].files:
            raise ArtifactError(f"{self.folder}: shard {index} of {table} is not committed")
        facts = self._entries[index].files[table]
        path = inside(self.folder, facts["path"])
        if facts["path"] not in self._verified:
            if not path.is_file() or file_sha256(path) != facts["sha256"]:
                raise ArtifactError(f"{path}: missing or damaged. {repair_hint(self._stage)}")
            self._verified.add(facts["path"])
        return read_parquet(path)

    def table(self, name: str) -> pa.Table:
        """Returns a whole table over the committed shards, in item order."""
        parts = [self.read(index, name) for index in sorted(self._entries)]
        return pa.concat_tables([self.specs[name].schema.empty_table(), *parts])

    def _committed_items(self) -> int:
        return sum(len(self._shards[index].item_ids) for index in self._entries)
