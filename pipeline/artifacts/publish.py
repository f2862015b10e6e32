"""The end of a stage: balanced accounts, merged shards, and the manifest that lists it all, written last."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.commit import MAX_FAILED_SHARE, Shards, make_durable
from pipeline.artifacts.disk import (
    fsync_file,
    fsync_folder,
    inside,
    publish_once,
    sealed,
    temporary,
    write_durably,
)
from pipeline.artifacts.failpoints import failpoint
from pipeline.artifacts.ledger import Counts
from pipeline.artifacts.manifest import (
    NAME,
    SCHEMA_VERSION,
    content_of,
    plain_json,
    provenance,
    read_manifest,
)
from pipeline.artifacts.metrics import plain
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import file_sha256
from pipeline.schema import TableSpec, check_table, write_parquet
from pipeline.table_digest import content_digest, schema_digest

RESERVED = ("plan.json", NAME, "metrics.jsonl", "report.json", "shards", "logs", "checkpoints")


class Outputs:
    """Files of a stage that are no tables: a policy's folder, a gate, a page."""

    def __init__(self, folder: Path, stage: str) -> None:
        self._folder = folder
        self._stage = stage
        self._volatile: dict[str, bool] = {}

    def path(self, relative: str, *, volatile: bool) -> Path:
        """Returns where to write one, emptied on its first use in a start; its parent folder is there.

        Raises:
            ValueError: the name belongs to the runner.
        """
        path = inside(self._folder, relative)
        first = Path(relative).parts[0]
        if first in RESERVED or first.startswith(("_", ".")):
            raise ValueError(
                f"{self._stage}: output {relative!r}; these names belong to the runner: {', '.join(RESERVED)}"
            )
        if relative not in self._volatile:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._volatile[relative] = volatile
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def collect(self) -> list[dict[str, Any]]:
        """Returns what the manifest says of each file, made durable. Raises ValueError if one is missing."""
        files = []
        for relative, volatile in sorted(self._volatile.items()):
            path = inside(self._folder, relative)
            inner = [path]
            if path.is_dir():
                inner = sorted(p for p in path.rglob("*") if p.is_symlink() or p.is_file())
            if not path.exists() or not inner:
                raise ValueError(f"{self._stage}: output {relative!r} was asked for and not written")
            for file in inner:
                name = file.relative_to(self._folder).as_posix()
                facts = describe(self._folder, name)
                fsync_file(file)
                files.append({"kind": "volatile" if volatile else "output", **facts})
            for folder in {file.parent for file in inner}:
                fsync_folder(folder)
        return files


def account(shards: Shards, stage: str, total: Counts, logs: Path) -> None:
    """Checks that every planned item ended, and that few failed.

    Raises:
        ValueError: the counts do not balance.
        ArtifactError: code FAILED_ITEMS if too many failed.
    """
    if not total.balanced:
        missing = shards.missing[:10]
        raise ValueError(f"{stage}: {total} {shards.plan.unit}; shards without a commit: {missing or 'none'}")
    if total.failed_share > MAX_FAILED_SHARE:
        raise ArtifactError(
            f"{stage}: {total} {shards.plan.unit}: more than {MAX_FAILED_SHARE:.0%} failed, so the result "
            f"would be biased. Next: remove the cause (see {logs}), then make {stage} "
            "SET=--repair, which tries the shards with failed items again",
            code=ExitCode.FAILED_ITEMS,
        )


def publish(
    folder: Path,
    identity: Mapping[str, Any],
    shards: Shards,
    outputs: Outputs,
    *,
    total: Counts,
    more_tables: Sequence[tuple[TableSpec, pa.Table]],
    report: Mapping[str, Any] | None,
    verdict: Mapping[str, Any] | None,
    how: Mapping[str, Any],
) -> None:
    """Writes tables, report and outputs of a stage, then its manifest: after that the stage is complete.

    Args:
        folder: the stage's.
        identity: name, key, settings and inputs.
        shards: all committed.
        outputs: files that are no tables.
        total: the accounts, balanced.
        more_tables: tables made at the end, each from all shards.
        report: written to report.json.
        verdict: a judgement that later stages obey.
        how: facts that no digest covers: runtime settings, starts, seconds.

    Raises:
        ValueError: a table is wrong, or has the name of another.
        ArtifactError: a shard is damaged, or another process published another result.
    """
    stage = identity["stage"]
    whole = [*((spec, shards.table(name)) for name, spec in shards.specs.items()), *more_tables]
    if len({spec.name for spec, _ in whole}) != len(whole):
        raise ValueError(f"{stage}: a table of finish has the name of a planned one")
    failpoint(f"{stage}.merge.before")
    files: list[dict[str, Any]] = []
    tables: dict[str, dict[str, Any]] = {}
    for spec, table in whole:
        check_table(table, spec)
        tables[spec.name] = {
            "rows": table.num_rows,
            "content": content_digest(table, spec),
            "schema": schema_digest(spec.schema),
            "id_columns": list(spec.id_columns),
            "volatile": sorted(spec.volatile),
        }
        files.append({"kind": "table", "table": spec.name, **_merged(folder, spec, table)})
    failpoint(f"{stage}.merge.after")
    if report is not None:
        text = json.dumps(plain(report), indent=1, ensure_ascii=False, allow_nan=False)
        write_durably(folder / "report.json", text.encode() + b"\n")
        files.append({"kind": "volatile", **describe(folder, "report.json")})
    files += outputs.collect()
    failpoint(f"{stage}.report_written")
    judged = None if verdict is None else plain_json(plain(verdict))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        **identity,
        **how,
        "unit": shards.plan.unit,
        "counts": dataclasses.asdict(total),
        "tables": tables,
        "files": files,
        "content_digest": content_of(
            {name: table["content"] for name, table in tables.items()},
            {facts["path"]: facts["sha256"] for facts in files if facts["kind"] == "output"},
            judged,
        ),
        "verdict": judged,
        "finished": time.time(),
        **provenance(),
    }
    if not publish_once(folder / NAME, sealed(manifest), f"{stage}.manifest"):
        other = read_manifest(folder)
        if other is None or other["content_digest"] != manifest["content_digest"]:
            raise ArtifactError(f"{folder}: another process has finished this stage with another result")
    remove_merged(folder)


def _merged(folder: Path, spec: TableSpec, table: pa.Table) -> dict[str, Any]:
    path = folder / f"{spec.name}.parquet"
    draft = temporary(path)
    write_parquet(table, spec, draft)
    make_durable(draft, table.num_rows)
    os.replace(draft, path)
    fsync_folder(folder)
    rows = table.select(list(spec.id_columns))
    first, last = (
        ([], [])
        if not table.num_rows
        else (list(rows.slice(i, 1).to_pylist()[0].values()) for i in (0, table.num_rows - 1))
    )
    return {**describe(folder, path.name), "rows": table.num_rows, "first_id": first, "last_id": last}


def describe(folder: Path, relative: str) -> dict[str, Any]:
    """Returns path, size and SHA-256 of a file of a stage."""
    path = inside(folder, relative)
    return {"path": relative, "bytes": path.stat().st_size, "sha256": file_sha256(path)}


def earlier_seconds(folder: Path) -> float:
    """Returns how long earlier starts ran; a killed one counts up to its last trace on disk."""
    traces = [path.stat().st_mtime for path in folder.rglob("*") if path.is_file()]
    total = 0.0
    starts = [path.parent for path in sorted((folder / "logs").glob("start_*/config.yaml"))]
    begins = [(start / "config.yaml").stat().st_mtime for start in starts]
    for start, begin, end in zip(starts, begins, begins[1:], strict=False):
        try:
            total += float(json.loads((start / "exit.json").read_bytes())["wall_seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            total += max((trace - begin for trace in traces if begin <= trace < end), default=0.0)
    return total


def remove_merged(folder: Path) -> None:
    """Removes the shards of a complete stage that has merged tables; nothing else."""
    shards = folder / "shards"
    for path in shards.glob("*/*"):
        if path.name.startswith(("part-", ".part-")):
            path.unlink(missing_ok=True)
    for path in [*shards.glob("*"), shards]:
        with contextlib.suppress(OSError):
            path.rmdir()
