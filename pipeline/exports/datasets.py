"""A run's tables as a data set folder, as the Hugging Face hub has them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.artifact import Artifact
from pipeline.columns import SPECS
from pipeline.exports.files import Part, write_card


def write_datasets(artifacts: Sequence[Artifact], folder: Path) -> list[Part]:
    """Copies the tables of stages, and writes a card that names them; returns them."""
    parts = []
    for artifact, name in [(stage, name) for stage in artifacts for name in stage.tables]:
        title = name if name == artifact.stage else f"{artifact.stage}_{name}"
        (folder / title).mkdir()
        shutil.copyfile(artifact.path(f"{name}.parquet"), folder / title / f"{name}.parquet")
        description = SPECS[name].description if name in SPECS else ""
        rows = artifact.manifest["tables"][name]["rows"]
        parts.append(Part(f"{title}/{name}.parquet", rows, description))
    write_card(folder, f"Tables of the run {artifacts[0].folder.parent.resolve().name}", parts)
    return parts
