"""`vdapo verify`: every digest, schema, id and count of a run."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import verified
from pipeline.artifacts.manifest import check_lineage, read_manifest, read_plan, repair_hint
from pipeline.errors import ArtifactError, ExitCode
from pipeline.runs import inner_runs, stages_of
from pipeline.schema import read_parquet
from pipeline.steps import check_tiling
from pipeline.tables import rollouts_from
from pipeline.text import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)


def run(options: argparse.Namespace) -> int:
    """Checks all stages of a run and of runs in it to the last byte; returns 3 if one is wrong, else 0."""
    run_dir: Path = options.run_dir
    console, code, num_stages = Console(), 0, 0
    for parent in (run_dir, *inner_runs(run_dir)):
        for stage in stages_of(parent):
            folder, style = parent / stage, ""
            try:
                found = _verify_stage(parent, stage)
            except (ArtifactError, ValueError) as error:
                code, style = int(ExitCode.ARTIFACT), "red"
                found = f"WRONG: {error}" if isinstance(error, ArtifactError) else f"WRONG: {folder}: {error}"
            if found is not None:
                num_stages += 1
                line = f"{folder.relative_to(run_dir)}: {found}"
                console.print(Text(visible(line), style=style), soft_wrap=True)
    if not num_stages:
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
            read_parquet(verified(folder, facts["path"], facts["sha256"], repair_hint(stage)))
    torn = f", {len(warnings)} torn ledger lines (their shards will be made again)" if warnings else ""
    return f"resumable and sound: {len(entries)} of {plan['shards']} shards{torn}"
