"""`vdapo export`: a run's tables as a data set folder, as the hub has them, or its rollouts as sessions."""

import argparse
import shutil
from pathlib import Path

import yaml

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import make_folder
from pipeline.artifacts.manifest import read_manifest
from pipeline.cli.runs import stages_of
from pipeline.cli.sessions import write_sessions
from pipeline.columns import SPECS
from pipeline.errors import ArtifactError, ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    parser.add_argument("--to", choices=["datasets", "sessions"], required=True, help="who will read them")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a new folder")


def run(options: argparse.Namespace) -> int:
    """Writes what `--to` asks for into the folder; returns 0."""
    run_dir, folder = options.run_dir, options.folder
    if options.to == "sessions":
        file = _new(folder) / "sessions.jsonl"
        number, left_out = write_sessions(run_dir, file)
        print(f"{number} sessions in {file}")
        for kind, others in sorted(left_out.items()):
            print(f"rollouts left out: {others} {kind}")
        return 0
    return _as_datasets(run_dir, folder)


def _new(folder: Path) -> Path:
    make_folder(folder, "FOLDER")
    if any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give a new folder")
    return folder


def _as_datasets(run_dir: Path, folder: Path) -> int:
    """Writes the tables of every complete stage and a card that names them; returns 0."""
    complete = [
        Artifact.open(run_dir, stage) for stage in stages_of(run_dir) if read_manifest(run_dir / stage)
    ]
    tables = [(artifact, name) for artifact in complete for name in artifact.tables]
    if not tables:
        raise ArtifactError(f"{run_dir} has no table of a complete stage. Next: make tasks")
    _new(folder)
    configs, lines = [], []
    for artifact, name in tables:
        title = name if name == artifact.stage else f"{artifact.stage}_{name}"
        (folder / title).mkdir()
        shutil.copyfile(artifact.path(f"{name}.parquet"), folder / title / f"{name}.parquet")
        configs.append({"config_name": title, "data_files": f"{title}/*.parquet"})
        rows = artifact.manifest["tables"][name]["rows"]
        description = SPECS[name].description if name in SPECS else ""
        lines.append(f"- `{title}` ({rows} rows): {description}".rstrip())
        print(f"{title}: {rows} rows")
    head = yaml.safe_dump({"configs": configs}, sort_keys=False)
    text = f"---\n{head}---\n# Tables of the run {run_dir.name}\n\n" + "\n".join(lines) + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
    print(f'load one with: datasets.load_dataset("{folder}", "{configs[0]["config_name"]}")')
    return 0
