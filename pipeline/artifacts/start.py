"""One start of one stage: what a stage's `make` function works with."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.checkpoints import Checkpoints
from pipeline.artifacts.disk import (
    fsync_file,
    fsync_folder,
    inside,
    publish_once,
    remove_dead_temporaries,
    sealed,
    temporary,
    write_durably,
)
from pipeline.artifacts.failpoints import failpoint
from pipeline.artifacts.manifest import (
    NAME,
    SCHEMA_VERSION,
    content_of,
    plain_json,
    provenance,
    read_manifest,
    read_plan,
    repair_hint,
)
from pipeline.artifacts.metrics import Metrics, plain
from pipeline.artifacts.progress import Progress
from pipeline.artifacts.signals import StopFlag
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import digest, file_sha256
from pipeline.schema import TableSpec, check_table, content_digest, read_parquet, schema_digest, write_parquet
from pipeline.text import visible

MAX_FAILED_SHARE = 0.02
RESERVED = ("plan.json", NAME, "metrics.jsonl", "report.json", "shards", "logs", "checkpoints")


class DryRun(BaseException):
    """Ends a stage at `plan` under --dry-run, with exit code 0."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Items that are committed together.

    Attributes:
        index: place in the plan, from 0.
        item_ids: what is planned here.
        start: index of its first item among all.
        stop: one past its last.
    """

    index: int
    item_ids: tuple[str, ...]
    start: int
    stop: int


class Start:
    """A stage's folder, its inputs and its settings, while the stage's lock is held.

    The order of calls in `make` is: `plan`; for each shard of `to_do`, `commit`; `finish`. Nothing heavy may
    happen before `plan`, which ends the stage under --dry-run.

    Attributes:
        config: the whole configuration.
        run_dir: `<data_dir>/<run>`.
        folder: `<run_dir>/<stage>`.
        stage_key: identifies settings, code version and inputs.
        seed: `run.seed`.
        inputs: the stages before it, verified.
        checkpoints: training state, if the stage saves any.
        console: standard error, for progress.
        number: of this start, from 0.
    """

    def __init__(
        self,
        *,
        config: Any,
        run_dir: Path,
        identity: dict[str, Any],
        inputs: dict[str, Artifact],
        number: int,
        stop: StopFlag,
        console: Console,
        runtime_settings: dict[str, Any],
        dry_run: bool = False,
        repair: bool = False,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.stage: str = identity["stage"]
        self.folder = run_dir / self.stage
        self.stage_key: str = identity["stage_key"]
        self.seed: int = config.run.seed
        self.inputs = inputs
        self.console = console
        self.number = number
        self.checkpoints = Checkpoints(self.folder, self.stage, self.say)
        self.counts: ledger.Counts | None = None
        self._identity = identity
        self._runtime = runtime_settings
        self._stop = stop
        self._dry_run = dry_run
        self._repair = repair
        self._metrics = Metrics(self.folder / "metrics.jsonl", number, self.say)
        self._began = time.monotonic()
        self._shards: list[Shard] = []
        self._tables: dict[str, TableSpec] = {}
        self._entries: dict[int, ledger.Entry] = {}
        self._verified: set[str] = set()
        self._outputs: dict[str, bool] = {}
        self._unit = "items"
        self._planned = False
        self._finished = False
        self._bar: Progress | None = None

    # -- the plan ------------------------------------------------------------------------------------------

    def plan(
        self,
        items: Sequence[Sequence[str]] | Sequence[str],
        *,
        shard_size: int | None = None,
        tables: Sequence[TableSpec] = (),
        unit: str,
        estimate: Mapping[str, Any] | None = None,
    ) -> None:
        """Fixes what this stage will make: written once, compared later; --dry-run prints it and ends.

        Args:
            items: the planned item ids, either as a list per shard, or flat with `shard_size`.
            shard_size: items per shard of a flat list.
            tables: the tables that each commit brings.
            unit: what an item is, in the plural.
            estimate: figures for --dry-run, e.g. rows, tokens, memory.

        Raises:
            ValueError: an id is planned twice, or two tables share a name.
            ArtifactError: an earlier start planned other items, or a committed shard is damaged.
        """
        if shard_size is not None:
            flat_items = [str(item) for item in items]
            lists = [flat_items[i : i + shard_size] for i in range(0, len(flat_items), shard_size)]
        else:
            if any(isinstance(item, str) for item in items):
                raise ValueError(
                    "plan got a flat list of items; give shard_size, or a list of items per shard"
                )
            lists = [list(shard) for shard in items]
        flat = [item for shard in lists for item in shard]
        if len(set(flat)) != len(flat):
            raise ValueError(f"{self.stage}: the plan names an item twice; item ids must be unique")
        self._tables = {spec.name: spec for spec in tables}
        if len(self._tables) != len(tables):
            raise ValueError(f"{self.stage}: two tables of the plan share a name")
        self._unit = unit
        position = 0
        for index, shard in enumerate(lists):
            self._shards.append(Shard(index, tuple(shard), position, position + len(shard)))
            position += len(shard)
        if self._dry_run:
            self._print_plan(len(flat), estimate or {})
            raise DryRun
        wanted = {
            **self._identity,
            "unit": unit,
            "planned": len(flat),
            "shards": len(lists),
            "items_digest": digest("items", lists),
            "tables": sorted(self._tables),
        }
        recorded = read_plan(self.folder)
        if recorded is None:
            write_durably(self.folder / "plan.json", sealed({"schema_version": SCHEMA_VERSION, **wanted}))
        else:
            different = [
                key for key in ("planned", "shards", "items_digest", "tables") if recorded[key] != wanted[key]
            ]
            if different:
                raise ArtifactError(
                    f"{self.folder}: an earlier start with the same settings planned other work: "
                    + ", ".join(f"{key} {recorded[key]} -> {wanted[key]}" for key in different)
                    + ". The code has changed its meaning. "
                    f"Next: raise code_version, or make {self.stage} SET=--fresh"
                )
        failpoint(f"{self.stage}.plan_written")
        self._planned = True
        self._take_over()

    def _print_plan(self, planned: int, estimate: Mapping[str, Any]) -> None:
        begun = "begun" if read_plan(self.folder) else "absent"
        state = "complete" if read_manifest(self.folder) else begun
        committed = len(ledger.read(self.folder)[0])
        print(
            f"{self.stage}: would make {planned} {self._unit} in {len(self._shards)} shards "
            f"in {self.folder} ({state})"
        )
        if committed:
            print(f"  committed by earlier starts: {committed} shards")
        for name, artifact in self.inputs.items():
            print(f"  reads {name} {artifact.content_digest[:8]}")
        for key, value in estimate.items():
            print(f"  {key}: {value}")

    def _take_over(self) -> None:
        """Loads what earlier starts committed: sizes and footers are checked, dead temporary files go."""
        for folder in (self.folder, *(self.folder / "shards" / name for name in self._tables)):
            for path in remove_dead_temporaries(folder) if folder.is_dir() else ():
                self.say(f"removed the unfinished file of a dead process: {path.name}")
        self._entries, warnings = ledger.read(self.folder)
        for warning in warnings:
            self.say(warning)
        for index, entry in list(self._entries.items()):
            problem = self._problem(entry)
            if problem and self._repair:
                self._strike(entry, problem)
            elif problem:
                raise ArtifactError(
                    f"{problem}. Next: make {self.stage} SET=--repair, which makes that shard again"
                )
            elif index >= len(self._shards):
                raise ArtifactError(
                    f"{self.folder}: the ledger has shard {index}, the plan has {len(self._shards)}"
                )
        if self._repair and self._total().failed_share > MAX_FAILED_SHARE:
            for entry in [entry for entry in self._entries.values() if sum(entry.failed.values())]:
                self._strike(entry, f"shard {entry.index} has failed items")
        if self._entries:
            self.say(f"resuming: {len(self._entries)} of {len(self._shards)} shards are committed")

    def _problem(self, entry: ledger.Entry) -> str | None:
        for facts in entry.files.values():
            path = inside(self.folder, facts["path"])
            try:
                if path.stat().st_size != facts["bytes"]:
                    return f"{path}: {path.stat().st_size} bytes, the ledger says {facts['bytes']}"
                if pq.read_metadata(path).num_rows != facts["rows"]:
                    return f"{path}: its number of rows is not the ledger's"
                if self._repair and file_sha256(path) != facts["sha256"]:
                    return f"{path}: its SHA-256 is not the ledger's"
            except FileNotFoundError:
                return f"{path}: missing, though the ledger lists it"
            except (pa.ArrowException, OSError):
                return f"{path}: not a readable Parquet file"
        return None

    def _strike(self, entry: ledger.Entry, why: str) -> None:
        self.say(f"repair: {why}; shard {entry.index} will be made again")
        generation = ledger.next_generation(self.folder, entry.index)
        ledger.append(self.folder, ledger.Entry(entry.index, generation, {}, 0, struck=True))
        del self._entries[entry.index]

    # -- shards --------------------------------------------------------------------------------------------

    def shards(self) -> list[Shard]:
        """Returns every planned shard, committed or not."""
        return list(self._shards)

    def is_committed(self, index: int) -> bool:
        """Returns whether a shard is in the ledger."""
        return index in self._entries

    def to_do(self) -> Generator[Shard, None, None]:
        """Yields the shards that are not committed, in order, under a progress bar; stops when asked to."""
        with self.progress(
            sum(len(s.item_ids) for s in self._shards), self._unit, initial=self._committed_items()
        ) as bar:
            self._bar = bar
            try:
                for shard in self._shards:
                    if not self.is_committed(shard.index):
                        self.stop_if_asked()
                        yield shard
            finally:
                self._bar = None

    def item_done(self, number: int = 1) -> None:
        """Moves `to_do`'s bar on within the open shard, and ends the stage here if it was asked to stop."""
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
    ) -> None:
        """Makes a shard count, with all of its tables or not at all.

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
        if not self._planned or not 0 <= index < len(self._shards):
            raise ValueError(
                f"{self.stage}: shard {index} is not planned; the plan has {len(self._shards)} shards"
            )
        if index in self._entries and not supersede:
            raise ValueError(
                f"{self.stage}: shard {index} is committed already; pass supersede=True to replace it"
            )
        failed = {str(k): int(v) for k, v in (failed or {}).items() if v}
        skipped = {str(k): int(v) for k, v in (skipped or {}).items() if v}
        counts = ledger.Counts.of(len(self._shards[index].item_ids), [(done, failed, skipped)])
        if not counts.balanced or min([done, *failed.values(), *skipped.values()]) < 0:
            raise ValueError(
                f"{self.stage}: shard {index}: {counts} {self._unit}; every planned item must be counted once"
            )
        if set(tables) != set(self._tables):
            raise ValueError(
                f"{self.stage}: shard {index} brings {sorted(tables)}; the plan has {sorted(self._tables)}"
            )
        for name, table in tables.items():
            check_table(table, self._tables[name])
        generation = ledger.next_generation(self.folder, index)  # above a superseded or struck line, else 0
        files = self._write_shard(index, tables)
        entry = ledger.Entry(index, generation, files, done, failed, skipped)
        ledger.append(self.folder, entry)
        failpoint(f"{self.stage}.shard.after_ledger")
        self._entries[index] = entry
        if self._bar is not None:
            self._bar.set(self._committed_items())

    def _write_shard(self, index: int, tables: Mapping[str, pa.Table]) -> dict[str, dict[str, Any]]:
        failpoint(f"{self.stage}.shard.before_write")
        written = []
        for name, table in tables.items():
            folder = self.folder / "shards" / name
            folder.mkdir(parents=True, exist_ok=True)
            draft = temporary(folder / f"part-{index:05d}")
            write_parquet(table, self._tables[name], draft)
            written.append((name, table, draft))
        failpoint(f"{self.stage}.shard.after_write")
        files: dict[str, dict[str, Any]] = {}
        for name, table, draft in written:
            # Read back through page checksums: what cannot be read now must never be listed.
            if read_parquet(draft).num_rows != table.num_rows:
                raise OSError(f"{draft}: rows were lost while writing")
            fsync_file(draft)
            sha = file_sha256(draft)
            path = f"shards/{name}/part-{index:05d}-{self.stage_key[:8]}-{sha[:8]}.parquet"
            files[name] = {"path": path, "rows": table.num_rows, "bytes": draft.stat().st_size, "sha256": sha}
        failpoint(f"{self.stage}.shard.after_fsync")
        for name, _, draft in written:
            os.replace(draft, self.folder / files[name]["path"])
            fsync_folder(draft.parent)
        for folder in (self.folder / "shards", self.folder):
            if folder.is_dir():
                fsync_folder(folder)
        failpoint(f"{self.stage}.shard.after_rename")
        return files

    def read_shard(self, index: int, table_name: str) -> pa.Table:
        """Returns one table of a committed shard, its SHA-256 compared on first use.

        Raises:
            ArtifactError: not committed, or damaged.
        """
        if index not in self._entries or table_name not in self._entries[index].files:
            raise ArtifactError(f"{self.folder}: shard {index} of {table_name} is not committed")
        facts = self._entries[index].files[table_name]
        path = inside(self.folder, facts["path"])
        if facts["path"] not in self._verified:
            if not path.is_file() or file_sha256(path) != facts["sha256"]:
                raise ArtifactError(f"{path}: missing or damaged. {repair_hint(self.stage)}")
            self._verified.add(facts["path"])
        return read_parquet(path)

    def shard_table(self, name: str) -> pa.Table:
        """Returns a whole table over the committed shards, in item order."""
        parts = [self.read_shard(index, name) for index in sorted(self._entries)]
        return pa.concat_tables([self._tables[name].schema.empty_table(), *parts])

    def _committed_items(self) -> int:
        return sum(len(self._shards[index].item_ids) for index in self._entries)

    def _total(self) -> ledger.Counts:
        planned = sum(len(shard.item_ids) for shard in self._shards)
        return ledger.Counts.of(planned, [(e.done, e.failed, e.skipped) for e in self._entries.values()])

    # -- along the way -------------------------------------------------------------------------------------

    def output(self, relative: str, *, volatile: bool = False) -> Path:
        """Returns where to write a file or folder that belongs to the stage; its parent folder is there.

        It enters the manifest with its SHA-256 at `finish`. What an unfinished start left there goes first.

        Args:
            relative: path inside the stage's folder.
            volatile: leave it out of the content digest (pages, plots: what no later stage reads).
        """
        path = inside(self.folder, relative)
        first = Path(relative).parts[0]
        if first in RESERVED or first.startswith(("_", ".")):
            raise ValueError(
                f"{self.stage}: output {relative!r}; these names belong to the runner: {', '.join(RESERVED)}"
            )
        if relative not in self._outputs:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._outputs[relative] = volatile
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def stop_if_asked(self) -> None:
        """Ends the stage with exit code 75 if a signal came. Call it wherever what follows could be long."""
        self._stop.raise_if_set()

    def progress(self, total: int, description: str, *, initial: int = 0) -> Progress:
        """Returns a context manager with `advance(n)`: a bar on a terminal, elsewhere a line every 10 s."""
        return Progress(self.console, f"{self.stage}: {description}", total, initial)

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Adds a line to metrics.jsonl; `iteration` or `update` in it lets a resumed history be read back."""
        self._metrics.write(values)

    def say(self, text: str) -> None:
        """Prints a line and keeps it in logs/start_NNN/stage.log; control characters become visible."""
        self.console.print(visible(text), markup=False, highlight=False, soft_wrap=True)
        self.log(text)

    def log(self, text: str) -> None:
        """Keeps a line in logs/start_NNN/stage.log; a full disk does not matter here."""
        if not self._dry_run:
            with (
                contextlib.suppress(OSError),
                (self.log_folder / "stage.log").open("a", encoding="utf-8") as file,
            ):
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {visible(text)}\n")

    @property
    def log_folder(self) -> Path:
        """`logs/start_NNN` of this start."""
        return self.folder / "logs" / f"start_{self.number:03d}"

    # -- the end -------------------------------------------------------------------------------------------

    def finish(
        self,
        *,
        more_tables: Sequence[tuple[TableSpec, pa.Table]] = (),
        tables: bool = True,
        report: Mapping[str, Any] | None = None,
        verdict: Mapping[str, Any] | None = None,
        done: int = 0,
        failed: Mapping[str, int] | None = None,
        skipped: Mapping[str, int] | None = None,
    ) -> None:
        """Checks the accounting, merges the shards, publishes the manifest: after that the stage is complete.

        Args:
            more_tables: tables made at the end, each from all shards.
            tables: merge each table's shards into `<table>.parquet`; otherwise they stay where they are.
            report: written to report.json; presentation, no part of the content digest.
            verdict: a judgement that later stages obey; part of the content digest.
            done: items that came out well outside any commit (stages that plan updates and commit no shards).
            failed: likewise, by kind.
            skipped: likewise, by kind.

        Raises:
            ValueError: the counts do not balance, or a table is wrong.
            ArtifactError: code FAILED_ITEMS if too many items failed; a shard is damaged.
        """
        total = self._account(done, failed or {}, skipped or {})
        specs = [*self._tables.values(), *(spec for spec, _ in more_tables)]
        if len({spec.name for spec in specs}) != len(specs):
            raise ValueError(f"{self.stage}: a table of finish has the name of a planned one")
        failpoint(f"{self.stage}.merge.before")
        files: list[dict[str, Any]] = []
        facts: dict[str, dict[str, Any]] = {}
        whole = [(spec, self.shard_table(name), tables) for name, spec in self._tables.items()]
        for spec, table, merge in [*whole, *((spec, table, True) for spec, table in more_tables)]:
            check_table(table, spec)
            facts[spec.name] = {
                "rows": table.num_rows,
                "content": content_digest(table, spec),
                "schema": schema_digest(spec.schema),
                "id_columns": list(spec.id_columns),
                "volatile": sorted(spec.volatile),
            }
            parts = [self._merge(spec, table)] if merge else self._parts(spec.name)
            files += [{"kind": "table", "table": spec.name, **part} for part in parts]
        failpoint(f"{self.stage}.merge.after")
        if report is not None:
            text = json.dumps(plain(report), indent=1, ensure_ascii=False, allow_nan=False)
            write_durably(self.folder / "report.json", text.encode() + b"\n")
            files.append({"kind": "volatile", **self._describe("report.json")})
        files += self._collect_outputs()
        failpoint(f"{self.stage}.report_written")
        self._publish(total, files, facts, None if verdict is None else plain_json(plain(verdict)))
        self._finished = True
        self.counts = total
        if tables:
            remove_merged(self.folder)

    def _account(self, done: int, failed: Mapping[str, int], skipped: Mapping[str, int]) -> ledger.Counts:
        if not self._planned:
            raise ValueError(f"{self.stage}: finish before plan")
        parts = [(e.done, e.failed, e.skipped) for e in self._entries.values()]
        total = ledger.Counts.of(
            sum(len(s.item_ids) for s in self._shards), [*parts, (done, failed, skipped)]
        )
        if not total.balanced:
            missing = [shard.index for shard in self._shards if not self.is_committed(shard.index)][:10]
            raise ValueError(
                f"{self.stage}: {total} {self._unit}; shards without a commit: {missing or 'none'}"
            )
        if total.failed_share > MAX_FAILED_SHARE:
            raise ArtifactError(
                f"{self.stage}: {total} {self._unit}: more than {MAX_FAILED_SHARE:.0%} failed, so the result "
                f"would be biased. Next: remove the cause (see {self.log_folder}), then make {self.stage} "
                "SET=--repair, which tries the shards with failed items again",
                code=ExitCode.FAILED_ITEMS,
            )
        return total

    def _merge(self, spec: TableSpec, table: pa.Table) -> dict[str, Any]:
        path = self.folder / f"{spec.name}.parquet"
        draft = temporary(path)
        write_parquet(table, spec, draft)
        if read_parquet(draft).num_rows != table.num_rows:
            raise OSError(f"{draft}: rows were lost while writing")
        fsync_file(draft)
        os.replace(draft, path)
        fsync_folder(self.folder)
        rows = table.select(list(spec.id_columns))
        ends = (
            [list(rows.slice(i, 1).to_pylist()[0].values()) for i in (0, table.num_rows - 1)]
            if len(rows)
            else [[], []]
        )
        return {**self._describe(path.name), "rows": table.num_rows, "first_id": ends[0], "last_id": ends[1]}

    def _parts(self, name: str) -> list[dict[str, Any]]:
        return [dict(self._entries[index].files[name]) for index in sorted(self._entries)]

    def _describe(self, relative: str) -> dict[str, Any]:
        path = inside(self.folder, relative)
        return {"path": relative, "bytes": path.stat().st_size, "sha256": file_sha256(path)}

    def _collect_outputs(self) -> list[dict[str, Any]]:
        files = []
        for relative, volatile in sorted(self._outputs.items()):
            path = inside(self.folder, relative)
            inner = (
                sorted(p for p in path.rglob("*") if p.is_symlink() or p.is_file())
                if path.is_dir()
                else [path]
            )
            if not path.exists() or not inner:
                raise ValueError(f"{self.stage}: output {relative!r} was asked for and not written")
            for file in inner:
                name = file.relative_to(self.folder).as_posix()
                facts = self._describe(name)
                fsync_file(file)
                files.append({"kind": "volatile" if volatile else "output", **facts})
            for folder in {file.parent for file in inner}:
                fsync_folder(folder)
        return files

    def _publish(
        self,
        total: ledger.Counts,
        files: list[dict[str, Any]],
        tables: dict[str, dict[str, Any]],
        verdict: Any,
    ) -> None:
        outputs = {facts["path"]: facts["sha256"] for facts in files if facts["kind"] == "output"}
        manifest = {
            "schema_version": SCHEMA_VERSION,
            **self._identity,
            "runtime": self._runtime,
            "unit": self._unit,
            "counts": {
                "planned": total.planned,
                "done": total.done,
                "failed": total.failed,
                "skipped": total.skipped,
            },
            "tables": tables,
            "files": files,
            "content_digest": content_of(
                {name: t["content"] for name, t in tables.items()}, outputs, verdict
            ),
            "verdict": verdict,
            "starts": self.number + 1,
            "wall_seconds": round(self._earlier_seconds() + time.monotonic() - self._began, 3),
            "finished": time.time(),
            **provenance(),
        }
        if not publish_once(self.folder / NAME, sealed(manifest), f"{self.stage}.manifest"):
            other = read_manifest(self.folder)
            if other is None or other["content_digest"] != manifest["content_digest"]:
                raise ArtifactError(
                    f"{self.folder}: another process has finished this stage with another result"
                )

    def _earlier_seconds(self) -> float:
        """Returns how long earlier starts ran; a killed one counts up to its last trace on disk."""
        traces = [path.stat().st_mtime for path in self.folder.rglob("*") if path.is_file()]
        total = 0.0
        starts = [path.parent for path in sorted((self.folder / "logs").glob("start_*/config.yaml"))]
        begins = [(folder / "config.yaml").stat().st_mtime for folder in starts]
        for folder, begin, end in zip(starts, begins, begins[1:], strict=False):
            try:
                total += float(json.loads((folder / "exit.json").read_bytes())["wall_seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                total += max((trace - begin for trace in traces if begin <= trace < end), default=0.0)
        return total


def remove_merged(folder: Path) -> None:
    """Removes the shards of a complete stage whose tables are merged; nothing else."""
    shards = folder / "shards"
    for path in shards.glob("*/*"):
        if path.name.startswith(("part-", ".part-")):
            path.unlink(missing_ok=True)
    for path in [*shards.glob("*"), shards]:
        with contextlib.suppress(OSError):
            path.rmdir()
