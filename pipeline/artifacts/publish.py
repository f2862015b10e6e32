"""The end of a stage: balanced accounts, merged shards, and the manifest that lists it all, written last."""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.commit import MAX_FAILED_SHARE, Shards, make_durable
from pipeline.artifacts.disk import fsync, inside, publish_once, sealed, temporary, write_durably
from pipeline.artifacts.failpoints import failpoint
from pipeline.artifacts.ledger import Counts
from pipeline.artifacts.manifest import NAME, SCHEMA_VERSION, content_of, provenance, read_manifest
from pipeline.artifacts.metrics import plain
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import file_sha256
from pipeline.schema import TableSpec, content_digest, write_parquet

RESERVED = ("plan.json", NAME, "metrics.jsonl", "report.json", "shards", "logs", "checkpoints")


def account(shards: Shards, stage: str, total: Counts, logs: Path) -> None:
    """Raises ValueError unless every planned item ended, ArtifactError (FAILED_ITEMS) if too many failed."""
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
    outputs: Mapping[str, bool],
    *,
    total: Counts,
    more_tables: Sequence[tuple[TableSpec, pa.Table]],
    report: Mapping[str, Any] | None,
    verdict: Mapping[str, Any] | None,
    how: Mapping[str, Any],
) -> None:
    """Writes tables, report and manifest of a stage: after that it is complete.

    `outputs` are files and folders that are no tables -> whether they are volatile; `how` are facts that no
    digest covers. Raises ArtifactError if another process published another result.
    """
    stage = identity["stage"]
    whole = [*((spec, shards.table(name)) for name, spec in shards.specs.items()), *more_tables]
    if len({spec.name for spec, _ in whole}) != len(whole):
        raise ValueError(f"{stage}: a table of finish has the name of a planned one")
    failpoint(f"{stage}.merge.before")
    files: list[dict[str, Any]] = []
    tables: dict[str, dict[str, Any]] = {}
    for spec, table in whole:
        files.append({"kind": "table", **_merged(folder, spec, table)})
        tables[spec.name] = {
            "rows": table.num_rows,
            "content": content_digest(table, spec.id_columns),
            "id_columns": list(spec.id_columns),
        }
    failpoint(f"{stage}.merge.after")
    if report is not None:
        text = json.dumps(plain(report), indent=1, ensure_ascii=False, allow_nan=False)
        write_durably(folder / "report.json", text.encode() + b"\n")
        files.append(_described(folder, folder / "report.json", volatile=True))
    for relative, volatile in sorted(outputs.items()):
        files += _collected(folder, relative, volatile)
    failpoint(f"{stage}.report_written")
    judged = plain(verdict)
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
    sha = make_durable(draft, table.num_rows)
    os.replace(draft, path)
    fsync(folder)
    return {"path": path.name, "bytes": path.stat().st_size, "sha256": sha, "rows": table.num_rows}


def _collected(folder: Path, relative: str, volatile: bool) -> list[dict[str, Any]]:
    """Returns what the manifest says of an output's files, made durable."""
    path = inside(folder, relative)
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_symlink() or p.is_file())
    if not path.exists() or not files:
        raise ValueError(f"{folder.name}: output {relative!r} was asked for and not written")
    found = [_described(folder, file, volatile=volatile) for file in files]
    for place in (*files, *{file.parent for file in files}):
        fsync(place)
    return found


def _described(folder: Path, file: Path, *, volatile: bool) -> dict[str, Any]:
    path = inside(folder, file.relative_to(folder).as_posix())
    return {
        "kind": "volatile" if volatile else "output",
        "path": path.relative_to(folder).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": file_sha256(path),
    }


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
