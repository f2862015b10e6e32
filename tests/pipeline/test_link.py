"""A complete stage that is part of several runs."""

import os
import shutil
from pathlib import Path

import pytest

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.link import link_stage
from tests.pipeline import toy


def made(folder: Path) -> Path:
    """Returns a run with a complete stage that has left a lock and a log behind."""
    assert toy.run("source", toy.config_in(folder)) == 0
    return folder / "r" / "source"


def test_a_linked_stage_is_sound_and_has_its_own_lock(tmp_path: Path) -> None:
    source, target = made(tmp_path / "one"), tmp_path / "other" / "r" / "source"
    left = tmp_path / "other" / ".r-source"
    left.mkdir(parents=True)
    (left / "half").write_text("of a link that was cut off")
    link_stage(source, target)
    artifact = Artifact.open(target.parent, "source")
    artifact.verify()
    assert artifact.content_digest == Artifact.open(source.parent, "source").content_digest
    assert (target / "manifest.json").stat().st_ino == (source / "manifest.json").stat().st_ino
    assert not [name for name in ("_lock", "logs", "checkpoints", "half") if (target / name).exists()]
    assert not left.exists()
    shutil.rmtree(source)
    Artifact.open(target.parent, "source").verify()


def test_where_no_links_can_be_made_it_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError("another file system")

    source, target = made(tmp_path / "one"), tmp_path / "other" / "r" / "source"
    monkeypatch.setattr(os, "link", no_link)
    link_stage(source, target)
    assert (target / "manifest.json").stat().st_ino != (source / "manifest.json").stat().st_ino
    Artifact.open(target.parent, "source").verify()
