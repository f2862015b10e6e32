"""`vdapo export`: a run in the forms of other tools. Each form is a file of `pipeline/exports/`."""

import argparse
import difflib
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import make_folder
from pipeline.artifacts.manifest import read_manifest
from pipeline.errors import ArtifactError, ConfigError
from pipeline.exports.datasets import write_datasets
from pipeline.exports.files import Part
from pipeline.exports.openai import write_openai
from pipeline.exports.selection import Selection
from pipeline.exports.sessions import write_sessions
from pipeline.exports.sqlite import write_sqlite
from pipeline.exports.trl import write_trl
from pipeline.exports.verl import write_tasks, write_verl
from pipeline.runs import stages_of

ROLLOUTS: dict[str, Callable[[Selection, Path], list[Part]]] = {
    "openai": write_openai,
    "sessions": write_sessions,
    "trl": write_trl,
    "verl": write_verl,
}
"""Forms of the rollouts of one stage."""
WHOLE: dict[str, Callable[[list[Artifact], Path], list[Part]]] = {
    "datasets": write_datasets,
    "sqlite": write_sqlite,
}
"""Forms of whole tables."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    forms = sorted([*ROLLOUTS, *WHOLE])
    parser.add_argument("--to", choices=forms, required=True, help="who will read it")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a new folder")
    parser.add_argument("--stage", help="whose rollouts (default: rollouts), or tables (default: all)")
    parser.add_argument("--split", help="only tasks of this split, and their rollouts")
    parser.add_argument("--min-reward", type=float, help="only rollouts of at least this reward")


def run(options: argparse.Namespace) -> int:
    """Writes what `--to` asks for into the folder, and says what is in it and who is left out; returns 0."""
    parts = _written(options)
    for part in parts:
        print(f"{options.folder}/{part.file}: {part.rows} rows{'' if part.rows else ', so no file'}")
        for kind, others in part.left_out.items():
            print(f"  left out: {others} {kind}")
    return 0


def _written(options: argparse.Namespace) -> list[Part]:
    """Writes the folder; what can be refused is refused before there is one."""
    run_dir, folder, stage = options.run_dir, options.folder, options.stage
    if options.min_reward is not None and not math.isfinite(options.min_reward):
        raise ConfigError(f"--min-reward is {options.min_reward}; allowed: a finite number")
    if stage is not None and stage not in (known := stages_of(run_dir)):
        near = difflib.get_close_matches(stage, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"this run's stages: {', '.join(known)}"
        raise ConfigError(f"--stage is {stage!r}; {hint}")
    if options.to in WHOLE:
        if options.split is not None or options.min_reward is not None:
            raise ConfigError(
                f"--to {options.to} takes whole tables; --split and --min-reward belong to what reads them"
            )
        artifacts = _complete(run_dir, stage)
        with _new(folder):
            return WHOLE[options.to](artifacts, folder)
    selection = Selection(run_dir, stage or "rollouts", options.split, options.min_reward)
    if options.split is not None:
        selection.check_split()
    if options.to == "verl" and not (stage or read_manifest(run_dir / "rollouts")):
        Artifact.open(run_dir, "tasks")
        with _new(folder):
            return write_tasks(selection, folder)
    Artifact.open(run_dir, selection.stage)
    with _new(folder):
        return ROLLOUTS[options.to](selection, folder)


@contextmanager
def _new(folder: Path) -> Iterator[None]:
    """Makes a folder; it is empty again after an error, so the same command can be given again."""
    make_folder(folder, "FOLDER")
    if any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty; allowed: a new folder. If an export was killed there (.part files are "
            "left of it), remove the folder and give the same command again"
        )
    try:
        yield
    except BaseException:
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        raise


def _complete(run_dir: Path, stage: str | None) -> list[Artifact]:
    """Returns the stages with tables that are complete, or the one that was asked for."""
    stages = [name for name in stages_of(run_dir) if read_manifest(run_dir / name)]
    found = [Artifact.open(run_dir, name) for name in ([stage] if stage else stages)]
    if not any(artifact.tables for artifact in found):
        raise ArtifactError(f"{run_dir} has no table of a complete stage. Next: make tasks")
    return found
