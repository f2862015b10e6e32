"""What a complete stage says of itself, and whether that still holds."""

import contextlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts.disk import damage, unsealed
from pipeline.config import differences, flatten
from pipeline.errors import ArtifactError
from pipeline.ids import digest

SCHEMA_VERSION = 3
NAME = "manifest.json"
LIBRARIES = ("numpy", "pyarrow", "safetensors", "scikit-learn", "tokenizers", "torch", "transformers")


class OtherLayoutError(ArtifactError):
    """A sound record of another version of this program; no damage that could be repaired."""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Returns a stage folder's manifest, or None; raises ArtifactError if damaged or of another layout."""
    return _read(folder / NAME)


def read_plan(folder: Path) -> dict[str, Any] | None:
    """Returns a stage folder's plan, or None; raises as `read_manifest` does."""
    return _read(folder / "plan.json")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = unsealed(path)
    except FileNotFoundError:
        return None
    except ArtifactError as error:
        raise ArtifactError(f"{error}. {repair_hint(path.parent.name)}") from None
    except NotADirectoryError:
        raise ArtifactError(f"{path.parent} is no folder; a stage's folder belongs there") from None
    if record.get("schema_version") != SCHEMA_VERSION:
        commit = record.get("git_commit")
        raise OtherLayoutError(
            f"{path.parent} was made by a version of this program with other settings and columns (layout "
            f"{record.get('schema_version')}; this one reads {SCHEMA_VERSION}). Next: make it again as "
            f"another run (RUN=name), or use the version that made it"
            + (f", git {commit[:10]}" if commit else "")
        )
    return record


def check_sizes(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Checks that each file of a manifest is there with its size; else raises ArtifactError naming it."""
    for facts in manifest["files"]:
        if problem := damage(folder, facts):
            raise ArtifactError(f"{problem}. {repair_hint(manifest['stage'])}")


def repair_hint(stage: str) -> str:
    """Returns the next move for a damaged stage."""
    return f"Next: make {stage} SET=--repair, which makes again what is damaged"


def content_of(tables: Mapping[str, str], outputs: Mapping[str, str], verdict: Any) -> str:
    """Returns a stage's content digest: of its rows, its non-volatile files and its verdict alone."""
    return digest("content", dict(tables), dict(outputs), verdict)


def key_of(record: Mapping[str, Any]) -> str:
    """Returns the stage key of a plan, a manifest or what they are made from."""
    return digest("stage", record["stage"], record["code_version"], record["settings"], record["inputs"])


def refuse_if_changed(
    folder: Path, recorded: Mapping[str, Any], wanted: Mapping[str, Any], *, complete: bool
) -> None:
    """Raises ArtifactError if a stage was made or begun with other settings or inputs; names each of them."""
    if recorded["stage_key"] == wanted["stage_key"]:
        return
    stage, lines = wanted["stage"], []
    before = {"code_version": recorded["code_version"], **recorded["settings"]}
    if changed := differences(before, {"code_version": wanted["code_version"], **wanted["settings"]}):
        lines.append(f"{folder} is {'complete' if complete else 'half done'} with other settings:")
        lines += [f"  {line}" for line in changed]
    for name in sorted({*recorded["inputs"], *wanted["inputs"]}):
        old, new = recorded["inputs"].get(name), wanted["inputs"].get(name)
        if old != new:
            lines.append(input_changed(stage, name, old, new))
    lines.append(
        f"Next: undo the change, or use another run (RUN=name), or make {stage} SET=--fresh to begin again "
        "(the old folder is kept under _old/)"
    )
    raise ArtifactError("\n".join(lines))


def refuse_if_inputs_disagree(
    stage: str, settings: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises ArtifactError if a stage's inputs were made with other values of settings that it has as well.

    How to sample and how to train (`engine`, `training`) is each stage's own choice.
    """
    own = flatten(settings)
    lines = []
    for name, settings_of_input in inputs.items():
        theirs = flatten(settings_of_input)
        for key in sorted(own.keys() & theirs.keys()):
            if key.split(".")[0] not in ("engine", "training") and own[key] != theirs[key]:
                lines.append(f"  {key} = {own[key]!r}, but {name} was made with {theirs[key]!r}")
    if lines:
        raise ArtifactError(
            f"{stage} would read inputs of other settings:\n"
            + "\n".join(lines)
            + "\nNext: give the settings that the inputs were made with, or another run (RUN=name)"
        )


def input_changed(stage: str, name: str, old: str | None, new: str | None) -> str:
    """Returns the sentence that says which input of a stage is not the one it was made from."""
    if old is None or new is None:
        return f"{stage} {'now reads' if old is None else 'no longer reads'} {name}."
    return (
        f"{stage} was made from {name} {old[:8]}, the folder now holds {new[:8]}. "
        f"Run: make {stage} SET=--fresh, or use another run (RUN=name)"
    )


def check_lineage(run_dir: Path, names: Sequence[str]) -> None:
    """Raises ArtifactError for a stage that was not made from what its inputs hold now, all the way up."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        manifest = None if name in seen else read_manifest(run_dir / name)
        seen.add(name)
        if manifest is None:
            continue
        for upstream, old in manifest["inputs"].items():
            source = read_manifest(run_dir / upstream)
            if source is not None and source["content_digest"] != old:
                raise ArtifactError(input_changed(name, upstream, old, source["content_digest"]))
            waiting.append(upstream)


def provenance() -> dict[str, Any]:
    """Returns git commit, dirty flag and library versions: recorded, no part of any digest."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    here = Path(__file__).parent
    try:
        answer = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10, check=True)
        commit = answer.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = None  # not a checkout, or no git
    versions = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "git_commit": commit and commit.removesuffix("-dirty"),
        "git_dirty": commit and commit.endswith("-dirty"),
        "libraries": versions,
    }
