"""Complete stages that several runs share: made by one of them, part of each."""

import os
import shutil
from pathlib import Path

from pipeline.artifacts.disk import fsync

OF_ITS_MAKER = ("_lock", "checkpoints", "logs")
"""What a linked stage goes without."""


def link_stage(source: Path, target: Path) -> None:
    """Makes a complete stage of one run part of another, at once or not at all.

    The files are hard links, or copies where the file system has none: a complete stage never changes them.
    """
    draft = target.parent.parent / f".{target.parent.name}-{target.name}"
    shutil.rmtree(draft, ignore_errors=True)
    ignore = shutil.ignore_patterns(*OF_ITS_MAKER)
    shutil.copytree(source, draft, copy_function=_link, ignore=ignore)
    target.parent.mkdir(exist_ok=True)
    os.replace(draft, target)
    fsync(target.parent)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
