"""`vdapo verify`: every digest, schema, id and count of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import inside
from pipeline.artifacts.manifest import check_lineage, read_manifest, read_plan, repair_hint
from pipeline.cli.runs import refreshes_of, stages_of
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import file_sha256
from pipeline.schema import read_parquet
from pipeline.steps import check_tiling
from pipeline.tables import rollouts_from
from pipeline.text import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)


def run(options: argparse.Namespace) -> int:
    """Checks all stages of a run and its refreshes to the last byte; returns 3 if one is wrong, else 0."""
    run_dir: Path = options.run_dir
    console = Console()
    if not run_dir.is_dir():
        raise ArtifactError(f"{run_dir} is missing; give the folder of a run, such as data/demo")
    code = 0
    looked_at = 0
    for parent in (run_dir, *refreshes_of(run_dir)):
        for stage in stages_of(parent):
            folder = parent / stage
            name = folder.relative_to(run_dir)
            try:
                done = _verify_stage(parent, stage)
                if done is None:
                    continue
                said = Text(visible(f"{name}: {done}"))
            except (ArtifactError, ValueError) as error:
                code = int(ExitCode.ARTIFACT)
                where = "" if isinstance(error, ArtifactError) else f"{folder}: "
                said = Text(visible(f"{name}: WRONG: {where}{error}"), style="red")
            looked_at += 1
            console.print(said, soft_wrap=True)
    if not looked_at:
        raise ArtifactError(f"{run_dir} holds no stage. Next: make tasks, or give the folder of a run")
    return code


def _verify_stage(run_dir: Path, stage: str) -> str | None:
    folder = run_dir / stage
    if read_manifest(folder) is not None:
        artifact = Artifact.open(run_dir, stage)
        artifact.verify()
        check_lineage(run_dir, [stage])
        if {"rollouts", "steps"} <= set(artifact.tables):
            for rollout in rollouts_from(artifact.table("rollouts"), artifact.table("steps")):
                check_tiling(rollout)
        files = artifact.manifest["files"]
        size = sum(facts["bytes"] for facts in files) / 1e6
        return f"complete and sound: {len(files)} files, {size:.1f} MB, content {artifact.content_digest[:8]}"
    plan = read_plan(folder)
    if plan is None:
        return None
    entries, warnings = ledger.read(folder)
    for entry in entries.values():
        for facts in entry.files.values():
            path = inside(folder, facts["path"])
            if not path.is_file() or file_sha256(path) != facts["sha256"]:
                raise ArtifactError(f"{path}: missing or damaged. {repair_hint(stage)}")
            read_parquet(path)
    torn = f", {len(warnings)} torn ledger lines (their shards will be made again)" if warnings else ""
    return f"resumable and sound: {len(entries)} of {plan['shards']} shards{torn}"
