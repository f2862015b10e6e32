"""Weights of evaluations that may still become the best, on disk while a fit goes on."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifacts.disk import fsync
from pipeline.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """A folder of one fit alone, with a model folder for each kept evaluation."""

    folder: Path

    def keep(self, number: int, export: Callable[[Path], None]) -> None:
        """Stores weights as those of an evaluation, again after a kill."""
        self.drop(number)
        export(self.folder / str(number))

    def drop(self, number: int) -> None:
        """Forgets an evaluation."""
        shutil.rmtree(self.folder / str(number), ignore_errors=True)

    def clear(self) -> None:
        """Forgets what an earlier fit left."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def take_back(self, final: Path, best: int) -> None:
        """Undoes `remove` where the stage stopped after it: the output was then a whole copy of the best."""
        if not (self.folder / str(best)).exists() and final.exists():
            self.folder.mkdir(exist_ok=True)
            os.replace(final, self.folder / str(best))

    def copy_best(self, folder: Path, best: int) -> None:
        """Copies the best evaluation's weights to a folder that is not there yet."""
        if not (source := self.folder / str(best)).exists():
            raise ArtifactError(
                f"{source}, the weights of the best evaluation, are gone. Next: make critic SET=--fresh"
            )
        shutil.copytree(source, folder)

    def remove(self, final: Path) -> None:
        """Removes everything that is kept, before the stage is complete, for afterwards nobody would.

        The output is made durable first, and the folder goes in one move, so that a start after a stop finds
        the best weights either here or there, whole.
        """
        for path in final.rglob("*"):
            fsync(path)
        fsync(final)
        removed = self.folder.with_name(f"{self.folder.name}_removed")
        shutil.rmtree(removed, ignore_errors=True)
        os.replace(self.folder, removed)
        fsync(self.folder.parent)
        shutil.rmtree(removed)
