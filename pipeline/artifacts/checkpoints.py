"""Training state to go on from: a folder counts once commit.json is there and every digest matches."""

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.artifacts.disk import fsync, inside, made_durable, publish_once, sealed, unsealed, verified
from pipeline.errors import ArtifactError
from pipeline.processes.failpoints import failpoint
from pipeline.processes.threads import in_threads

FileFacts = Mapping[str, dict[str, Any]]
"""Path in a folder -> size and SHA-256 of a durable file."""

KEEP = 2
PART_BYTES = 2 * 10**9  # of a checkpoint, that a rank holds in host memory at once, unless a tensor is larger


class Checkpoints:
    """The checkpoints of one stage, under `<stage>/checkpoints/u<update>-<save>-<nonce>/`."""

    def __init__(self, folder: Path, stage: str, say: Callable[[str], None]) -> None:
        self.folder = folder / "checkpoints"
        self._stage = stage
        self._say = say
        self._damaged: set[Path] = set()

    def save(self, update: int, write: Callable[[Path], FileFacts], state: dict[str, Any]) -> Path:
        """Writes a checkpoint durably, then removes all but the newest two; returns its folder.

        `write` puts its files into the given folder. What it returns are those that it has made durable
        itself: path in the folder -> what `made_durable` says of it; the others are read again for that.
        `latest` gives back `state`, which is JSON data.
        """
        failpoint(f"{self._stage}.checkpoint.before")
        saves = [int(earlier.name.split("-")[1]) for earlier in self.folder.glob(f"u{update:08d}-*-*")]
        folder = self.folder / f"u{update:08d}-{max(saves, default=-1) + 1:04d}-{os.urandom(4).hex()}"
        try:
            self._write(folder, update, write, state)
        except BaseException:
            if not (folder / "commit.json").exists():  # of a full disk, say: the next try needs its room
                shutil.rmtree(folder, ignore_errors=True)
            raise
        failpoint(f"{self._stage}.checkpoint.after_commit")
        self._remove_others(folder)
        return folder

    def _write(
        self, folder: Path, update: int, write: Callable[[Path], FileFacts], state: dict[str, Any]
    ) -> None:
        folder.mkdir(parents=True)
        files = dict(write(folder))
        failpoint(f"{self._stage}.checkpoint.mid")
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
        for name in names:
            inside(folder, name)  # refuses a link
        left = [name for name in names if name not in files and (folder / name).is_file()]
        files |= zip(left, in_threads(made_durable, [folder / name for name in left]), strict=True)
        for sub in [*(p for p in folder.rglob("*") if p.is_dir()), folder, self.folder, self.folder.parent]:
            fsync(sub)
        failpoint(f"{self._stage}.checkpoint.after_files")
        record = {"schema_version": 1, "update": update, "state": state, "files": files}
        publish_once(folder / "commit.json", sealed(record), f"{self._stage}.checkpoint.commit")

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """Returns (folder, state) of the newest sound checkpoint, or None; damaged ones are logged.

        One that was never committed, of a start that was killed, is removed: the next needs its room.
        """
        for folder in self._newest_first():
            if not (folder / "commit.json").exists():
                self._say(f"checkpoint removed: {folder}: was never committed")
                shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                record = unsealed(folder / "commit.json")
                digests = [(name, facts["sha256"]) for name, facts in record["files"].items()]
                list(in_threads(partial(_must_match, folder), digests))
                return folder, record["state"]
            except ArtifactError as error:
                self._say(f"checkpoint skipped: {error}")
            self._damaged.add(folder)
        return None

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("u*-*-*"), reverse=True)

    def _remove_others(self, saved: Path) -> None:
        """Keeps what was saved and the newest sound ones before it; others are old, damaged or unfinished."""
        sound = [f for f in self._newest_first() if (f / "commit.json").exists() and f not in self._damaged]
        keep = [saved, *(folder for folder in sound if folder != saved)][:KEEP]
        for folder in self._newest_first():
            if folder not in keep:
                # Without commit.json first, a half-removed folder can never look committed.
                (folder / "commit.json").unlink(missing_ok=True)
                shutil.rmtree(folder)


def _must_match(folder: Path, file: tuple[str, str]) -> None:
    verified(folder, *file)
