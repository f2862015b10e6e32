"""The shards of a stage: committed one by one, each with all of its tables or not at all."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.artifacts import ledger
from pipeline.artifacts.disk import damage, fsync, made_durable, remove_temporaries, temporary, verified
from pipeline.artifacts.lock import CLAIMS, Lock, holder
from pipeline.artifacts.manifest import NAME, repair_hint
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.progress import Progress
from pipeline.artifacts.signals import HelpEnded
from pipeline.errors import ArtifactError
from pipeline.ids import file_sha256
from pipeline.processes.failpoints import failpoint
from pipeline.schema import parquet_batches, read_parquet, write_parquet

MAX_FAILED_SHARE = 0.02


def durable_table(draft: Path, num_rows: int) -> dict[str, Any]:
    """Reads a table's file back and makes it durable: what cannot be read is never listed."""
    if sum(batch.num_rows for batch in parquet_batches(draft)) != num_rows:  # through page checksums
        raise OSError(f"{draft}: rows were lost while writing")
    return made_durable(draft)


@dataclass(frozen=True, slots=True)
class Shard:
    """Items that are committed together: their place in the plan, from 0, and their ids."""

    index: int
    item_ids: tuple[str, ...]


@dataclass(eq=False)
class Shards:
    """The planned shards of a stage, some of them committed by earlier starts or by other processes."""

    folder: Path
    stage: str
    stage_key: str
    plan: Plan[Any]
    say: Callable[[str], None]
    progress: Callable[[int, str, int], Progress]  # total, description, what is done already -> a bar
    stop_if_asked: Callable[[], None]
    leads: bool = True  # else this process helps the one that does: it plays shards, and no more

    def __post_init__(self) -> None:
        self.specs = {spec.name: spec for spec in self.plan.tables}
        self._shards = [Shard(index, tuple(ids)) for index, ids in enumerate(self.plan.items)]
        self._entries: dict[int, ledger.Entry] = {}
        self._verified: set[str] = set()
        self._claims: dict[int, Lock] = {}
        self._begun = None if self.leads else self._plan_file()
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

    def seconds_of(self, index: int) -> float:
        """Returns what went into a shard by its commit; 0 before."""
        return self._entries[index].seconds if index in self._entries else 0.0

    @property
    def missing(self) -> list[int]:
        """Indices of the shards that are not committed."""
        return [shard.index for shard in self._shards if shard.index not in self._entries]

    @property
    def failed(self) -> list[int]:
        """Indices of the committed shards with failed items."""
        return [index for index, entry in self._entries.items() if sum(entry.failed.values())]

    def counts(self, done: int = 0) -> ledger.Counts:
        """Returns what became of the planned items; `done` of them came out well outside any commit."""
        parts = [(e.done, e.failed, e.skipped) for e in self._entries.values()]
        return ledger.Counts.of(self.plan.num_items, [*parts, (done, {}, {})])

    def take_over(self, *, repair: bool) -> None:
        """Loads what earlier starts committed; raises ArtifactError for a wrong size or footer.

        A repair checks SHA-256 and strikes what is damaged, shards of too many failures, then whole skips.
        """
        for folder in (self.folder, *(self.folder / "shards" / name for name in self.specs)):
            for path in remove_temporaries(folder, keep=self._is_being_written):
                self.say(f"removed the unfinished file of a dead process: {path.name}")
        self._entries, warnings = ledger.read(self.folder)
        for warning in warnings:
            self.say(warning)
        for entry in list(self._entries.values()):
            problem = self._problem(entry, with_sha=repair)
            if problem and repair:
                self._strike(entry, problem)
            elif problem:
                raise ArtifactError(f"{problem}. {repair_hint(self.stage)}")
        if repair and self.counts().failed_share > MAX_FAILED_SHARE:
            for index in self.failed:
                self._strike(self._entries[index], f"shard {index} has failed items")
        if repair and self.missing:  # which may have decided that others are skipped, as a look does
            for entry in [e for e in self._entries.values() if e.skipped and not e.done]:
                self._strike(entry, f"shard {entry.index} was skipped")
        if self._entries:
            self.say(f"resuming: {len(self._entries)} of {len(self._shards)} shards are committed")

    def _is_being_written(self, draft: Path) -> bool:
        """Returns whether a draft, `.part-00012-...`, is of a shard that a live helper plays."""
        index = draft.name.removeprefix(".part-").partition("-")[0]
        return index.isdigit() and holder(self.folder / CLAIMS, index) is not None

    def _plan_file(self) -> bytes | None:
        with suppress(OSError):
            return (self.folder / "plan.json").read_bytes()
        return None

    def refresh(self) -> None:
        """Takes in what other processes have committed; a stage that is over, or begun again, ends help."""
        if not self.leads and ((self.folder / NAME).exists() or self._plan_file() != self._begun):
            raise HelpEnded
        self._entries = ledger.read(self.folder)[0]
        if self._bar is not None:
            self._bar.set(max(self._bar.count, self._committed_items()))

    def claim(self, index: int) -> bool:
        """Returns whether this process may play a shard: it is not committed, and nobody else plays it.

        That holds until the commit, or `release`. A claim counts no more when its process is dead.
        """
        claims = self.folder / CLAIMS
        try:
            claims.mkdir(exist_ok=True)
            self._claims[index] = Lock(claims, f"{index:05d}", say=None)
        except ArtifactError:
            return False
        except FileNotFoundError:
            if self.leads:
                raise
            raise HelpEnded from None  # the stage is being set aside, or is complete
        self.refresh()  # only now: who had it before has committed it, or is dead
        if index in self._entries:
            self._claims.pop(index).release()
        return index in self._claims

    def release(self) -> None:
        """Gives back what was claimed and not committed; idempotent."""
        while self._claims:
            self._claims.popitem()[1].release()

    def _problem(self, entry: ledger.Entry, *, with_sha: bool) -> str | None:
        for facts in entry.files.values():
            if problem := damage(self.folder, facts):
                return problem
            path = self.folder / facts["path"]
            try:
                pq.read_metadata(path)
                if with_sha and file_sha256(path) != facts["sha256"]:
                    return f"{path}: its SHA-256 is not the ledger's"
            except (pa.ArrowException, OSError):
                return f"{path}: not a readable Parquet file"
        return None

    def _strike(self, entry: ledger.Entry, why: str) -> None:
        self.say(f"repair: {why}; shard {entry.index} will be made again")
        generation = ledger.next_generation(self.folder, entry.index)
        ledger.append(self.folder, replace(entry, generation=generation, struck=True))
        del self._entries[entry.index]

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Shows how far the stage is, by commits and by `item_done`."""
        with self.progress(self.plan.num_items, self.plan.unit, self._committed_items()) as self._bar:
            try:
                yield
            finally:
                self._bar = None

    def to_do(self) -> Generator[Shard, None, None]:
        """Yields the shards that are not committed, in order, under a progress bar; stops when asked to."""
        with self.bar():
            for index in self.missing:
                self.stop_if_asked()
                yield self._shards[index]

    def item_done(self, number: int = 1) -> None:
        """Moves the bar on before the items' shard is committed; ends the stage if it was asked to stop."""
        if number:
            failpoint(f"{self.stage}.item_done")
            if self._bar is not None:
                self._bar.advance(number)
        self.stop_if_asked()

    def commit(
        self,
        index: int,
        tables: Mapping[str, pa.Table],
        *,
        done: int,
        failed: Mapping[str, int] | None = None,
        skipped: Mapping[str, int] | None = None,
        supersede: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """Makes a shard count, with each of the plan's tables; `supersede` replaces an earlier commit.

        A shard that was claimed, and that another process has committed since, stays as that made it.
        """
        where = f"{self.stage}: shard {index}"
        if index in self._claims:
            self.refresh()
            if index in self._entries:
                self.say(f"{where} has been committed by another process, which took this one for dead")
                self._claims.pop(index).release()
                return
        if index in self._entries and not supersede:
            raise ValueError(f"{where} is committed already; pass supersede=True to replace it")
        num_items = len(self._shards[index].item_ids)
        counts = ledger.Counts.of(num_items, [(done, failed or {}, skipped or {})])
        if not counts.balanced or min([done, *counts.failed.values(), *counts.skipped.values()]) < 0:
            raise ValueError(f"{where}: {counts} {self.plan.unit}; every planned item must be counted once")
        if set(tables) != set(self.specs):
            raise ValueError(f"{where}: got tables {sorted(tables)}; planned: {sorted(self.specs)}")
        generation = ledger.next_generation(self.folder, index)  # above a superseded or struck line, else 0
        files = self._write(index, tables)
        entry = ledger.Entry(index, generation, files, done, counts.failed, counts.skipped, seconds=seconds)
        ledger.append(self.folder, entry)
        failpoint(f"{self.stage}.shard.after_ledger")
        self._entries[index] = entry
        if index in self._claims:
            self._claims.pop(index).release()
        if self._bar is not None:
            self._bar.set(max(self._bar.count, self._committed_items()))

    def _write(self, index: int, tables: Mapping[str, pa.Table]) -> dict[str, dict[str, Any]]:
        failpoint(f"{self.stage}.shard.before_write")
        drafts = {}
        for name, table in tables.items():
            folder = self.folder / "shards" / name
            folder.mkdir(parents=True, exist_ok=True)
            drafts[name] = temporary(folder / f"part-{index:05d}")
            write_parquet(table, self.specs[name], drafts[name])
        failpoint(f"{self.stage}.shard.after_write")
        files: dict[str, dict[str, Any]] = {}
        for name, draft in drafts.items():
            rows = tables[name].num_rows
            facts = durable_table(draft, rows)
            file = f"part-{index:05d}-{self.stage_key[:8]}-{facts['sha256'][:8]}.parquet"
            files[name] = {"path": f"shards/{name}/{file}", "rows": rows, **facts}
        failpoint(f"{self.stage}.shard.after_fsync")
        for name, draft in drafts.items():
            os.replace(draft, self.folder / files[name]["path"])
            fsync(draft.parent)
        for folder in (self.folder / "shards", self.folder):
            if folder.is_dir():
                fsync(folder)
        failpoint(f"{self.stage}.shard.after_rename")
        return files

    def read(self, index: int, table: str) -> pa.Table:
        """Returns one table of a committed shard, its SHA-256 compared on first use; else ArtifactError."""
        if index not in self._entries or table not in self._entries[index].files:
            raise ArtifactError(f"{self.folder}: shard {index} of {table} is not committed")
        facts = self._entries[index].files[table]
        self._verify(facts)
        return read_parquet(self.folder / facts["path"])

    def verify(self) -> None:
        """Raises ArtifactError for a committed file whose SHA-256 differs, if not compared yet."""
        for entry in self._entries.values():
            for facts in entry.files.values():
                self._verify(facts)

    def _verify(self, facts: Mapping[str, Any]) -> None:
        if facts["path"] not in self._verified:
            verified(self.folder, facts["path"], facts["sha256"], repair_hint(self.stage))
            self._verified.add(facts["path"])

    def table(self, name: str) -> pa.Table:
        """Returns a whole table over the committed shards, in item order."""
        parts = [self.read(index, name) for index in sorted(self._entries)]
        return pa.concat_tables([self.specs[name].schema.empty_table(), *parts])

    def _committed_items(self) -> int:
        return sum(len(self._shards[index].item_ids) for index in self._entries)
