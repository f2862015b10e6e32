"""The end of a stage: balanced accounts, merged shards, and the manifest that lists it all, written last."""

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.commit import MAX_FAILED_SHARE, Shards, durable_table
from pipeline.artifacts.disk import fsync, inside, made_durable, temporary
from pipeline.artifacts.ledger import Counts
from pipeline.artifacts.lock import CLAIMS
from pipeline.artifacts.manifest import NAME
from pipeline.columns import ROLLOUTS
from pipeline.errors import ArtifactError, ExitCode
from pipeline.processes.threads import in_threads
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
            f"would be biased{most_often(_said(shards))}. Next: remove the cause (see {logs}), then "
            f"make {stage} SET=--repair, which tries the shards with failed items again",
            code=ExitCode.FAILED_ITEMS,
        )


def most_often(details: Iterable[str]) -> str:
    """Returns what was said of failed items most often, as a sentence that goes on a refusal; else nothing.

    Example:
        >>> most_often(["no disk", "", "no net", "no net"]), most_often([""])
        ('. Most often: no net; no disk', '')
    """
    found = Counter(filter(None, details)).most_common(3)
    return f". Most often: {'; '.join(detail for detail, _ in found)}" if found else ""


def _said(shards: Shards) -> Iterator[str]:
    """Yields what was said of each rollout that could not be graded; other items leave no word."""
    for index in shards.failed if ROLLOUTS.name in shards.specs else ():
        for row in shards.read(index, ROLLOUTS.name).select(["reward", "events"]).to_pylist():
            if row["reward"] is None:
                yield from (event["detail"] for event in row["events"] if event["code"] == "infra_error")


def merge(
    folder: Path, shards: Shards, more_tables: Sequence[tuple[TableSpec, pa.Table]]
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Writes a stage's tables, of which one is in memory at a time.

    Returns what the manifest says of each table, and of each file.
    """
    facts, files = {}, []
    for name, spec in {**shards.specs, **{spec.name: spec for spec, _ in more_tables}}.items():
        parts = [shards.table(name)] if name in shards.specs else []
        table = pa.concat_tables([*parts, *(more for own, more in more_tables if own.name == name)])
        path = folder / f"{name}.parquet"
        draft = temporary(path)
        write_parquet(table, spec, draft)
        files.append({"kind": "table", "path": path.name, **durable_table(draft, table.num_rows)})
        os.replace(draft, path)
        fsync(folder)
        content = content_digest(table, spec.id_columns)
        facts[name] = {"rows": table.num_rows, "content": content, "id_columns": list(spec.id_columns)}
        del parts, table  # before the next one is read
    return facts, files


def collect(folder: Path, relative: str, volatile: bool) -> list[dict[str, Any]]:
    """Returns what the manifest says of the files of an output that is no table, made durable."""
    output = inside(folder, relative)
    paths = [output]
    if output.is_dir():
        paths = sorted(path for path in output.rglob("*") if path.is_symlink() or path.is_file())
    if not output.exists() or not paths:
        raise ValueError(f"{folder.name}: output {relative!r} was asked for and not written")
    files, kind = [], "volatile" if volatile else "output"
    names = [path.relative_to(folder).as_posix() for path in paths]
    for name in names:
        inside(folder, name)  # refuses a link
    for name, facts in zip(names, in_threads(made_durable, paths), strict=True):
        files.append({"kind": kind, "path": name, **facts})
    for parent in {path.parent for path in paths}:
        fsync(parent)
    return files


def earlier_seconds(folder: Path) -> float:
    """Returns how long earlier starts ran, each up to its last trace on disk."""
    traces = [path.stat().st_mtime for path in folder.rglob("*") if path.is_file()]
    begins = sorted(path.stat().st_mtime for path in folder.glob("logs/start_*/config.yaml"))
    ends = (
        max((trace for trace in traces if begin <= trace < after), default=begin)
        for begin, after in pairwise(begins)
    )
    return sum(ends) - sum(begins[:-1])


def remove_spent(folder: Path) -> None:
    """Removes what a complete stage needs no more: merged shards, who played them, checkpoints."""
    for spent in (CLAIMS, "checkpoints"):
        shutil.rmtree(folder / spent, ignore_errors=True)
    shards = folder / "shards"
    for path in shards.glob("*/*"):
        if path.name.startswith(("part-", ".part-")):
            path.unlink(missing_ok=True)
    for path in [*shards.glob("*"), shards]:
        with contextlib.suppress(OSError):
            path.rmdir()
