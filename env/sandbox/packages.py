"""Folders of installed packages among the libraries that a program may read: those it may not read."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from glob import escape, glob


def packages_in(readable: Iterable[str], known: Iterable[str], needed: Iterable[str]) -> list[str]:
    """Returns folders to hide, none of them in another one.

    Args:
        readable: where to look for packages, in the places that Pythons have for them.
        known: more folders to hide.
        needed: folders not to hide, nor what they are in: the standard library's.
    """
    usual = [
        path
        for folder in readable
        for name in ("site-packages", "dist-packages")
        for path in (f"{folder}/{name}", *glob(f"{escape(folder)}/*/{name}"))
    ]
    kept = [os.path.realpath(path) for path in needed]
    found = {os.path.realpath(path) for path in (*known, *usual) if os.path.isdir(path)}
    found = {path for path in found if not any(is_in(other, [path]) for other in kept)}
    return sorted(path for path in found if not is_in(path, found - {path}))


def is_in(path: str, folders: Collection[str]) -> bool:
    """Returns whether a path is one of the folders or in one."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def parts_without(path: str, hidden: Collection[str]) -> Iterator[str]:
    """Yields the path, or what is in it if some of that is hidden; no links, which stand for other files."""
    if not any(is_in(folder, [path]) for folder in hidden):
        yield path
    elif path not in hidden:
        for entry in os.scandir(path):
            if not entry.is_symlink():
                yield from parts_without(entry.path, hidden)
