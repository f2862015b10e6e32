"""Finished actors of runs beside one: with a critic and without, from the same `sft`."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.artifacts.artifact import Artifact
from pipeline.errors import ArtifactError

MOST = 5
"""Lines in a drawing, beside the run's own."""


def others_of(
    run_dir: Path, inputs: Mapping[str, Artifact], seed: int, evaluate_tasks: int
) -> dict[str, dict[str, Any]]:
    """Returns reports of the other runs' actors, the newest, by credit mode and run.

    They lie in the same data folder and have the same tasks, `sft`, seed and looks at val.
    """
    began = {name: inputs[name].content_digest for name in ("tasks", "sft")}
    found: dict[str, tuple[float, dict[str, Any]]] = {}
    with suppress(OSError):  # a picture is no reason to lose what was trained
        for folder in run_dir.parent.iterdir():
            # No run, not finished, damaged or of another version.
            with suppress(ArtifactError, OSError, LookupError):
                actor = Artifact.open(folder, "actor")
                settings = actor.manifest["settings"]
                same = began.items() <= actor.manifest["inputs"].items() and settings["run"]["seed"] == seed
                looks = settings["actor"]["evaluate_tasks"] == evaluate_tasks
                if folder != run_dir and same and looks and "learning" in actor.report:
                    name = f"{settings['actor']['credit']['mode']} ({folder.name})"
                    found[name] = (actor.folder.stat().st_mtime, actor.report)
    newest = sorted(found, key=lambda name: found[name][0])[-MOST:]
    return {name: found[name][1] for name in sorted(newest)}
