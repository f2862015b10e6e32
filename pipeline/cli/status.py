"""`vdapo status`: what of a run is done, stage by stage."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.lock import holder, players
from pipeline.artifacts.manifest import check_lineage, read_manifest, read_plan
from pipeline.cli.tables import texts_table
from pipeline.errors import ArtifactError
from pipeline.runs import inner_runs, stages_of
from pipeline.text import counted, visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument(
        "run_dirs", metavar="RUN_DIR", nargs="*", type=Path, help="default: every run under data/"
    )


def run(options: argparse.Namespace) -> int:
    """Prints a table per run, those inside it after it; returns 3 if a stage is damaged, else 0."""
    run_dirs: Sequence[Path] = options.run_dirs or sorted(
        path for path in Path("data").glob("*") if path.is_dir() and not path.name.startswith(".")
    )
    if not run_dirs:
        raise ArtifactError("no run under data/. Next: make demo, or vdapo status RUN_DIR")
    console, code = Console(), 0
    for run_dir in [run for given in run_dirs for run in (given, *inner_runs(given))]:
        table = texts_table(("stage", "state", "items", "finished", "digest"), visible(str(run_dir)))
        for stage in stages_of(run_dir):
            try:
                cells = _state(run_dir, stage)
            except ArtifactError as error:
                code, cells = int(error.code), ("damaged", "", "", "")
                print(visible(f"vdapo: {error}"), file=sys.stderr)
            table.add_row(*(Text(visible(cell)) for cell in (stage, *cells)))
        console.print(table)
    return code


def _state(run_dir: Path, stage: str) -> tuple[str, str, str, str]:
    """Returns a stage's state, its items, when it was finished, and its digest."""
    folder = run_dir / stage
    manifest = read_manifest(folder)
    if manifest is None:
        lease, plan = holder(folder), read_plan(folder)
        running = f", running as pid {lease['pid']} on {lease['host']}" if lease else ""
        helpers = {(found["host"], found["pid"]) for found in players(folder)}
        if lease and (number := len(helpers - {(lease["host"], lease["pid"])})):
            running += f", helped by {number} more"
        if plan is None:
            return ("begun" if running else "absent") + running, "", "", ""
        entries = ledger.read(folder)[0].values()
        ended = sum(e.done + sum(e.failed.values()) + sum(e.skipped.values()) for e in entries)
        state = f"resumable, {len(entries)} of {plan['shards']} shards{running}"
        return state, f"{ended} of {plan['planned']} {plan['unit']}", "", ""
    Artifact.open(run_dir, stage)
    state = "complete"
    try:
        check_lineage(run_dir, [stage])
    except ArtifactError:
        state = "stale: an input was made again"
    counts = manifest["counts"]
    others = {kind: sum(counts[kind].values()) for kind in ("failed", "skipped")}
    said = [f"{number} {kind}" for kind, number in others.items() if number]
    items = ", ".join([counted(counts["done"], manifest["unit"]), *said])
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest["finished"]))
    return state, items, when, manifest["content_digest"][:8]
