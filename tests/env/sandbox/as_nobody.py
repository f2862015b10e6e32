"""Runs a command as a user without rights, started by root; Python itself stays readable, wherever it is.

    python tests/env/sandbox/as_nobody.py COMMAND [ARGUMENT ...]

Folders that only root may enter, such as /root with an interpreter in it, are covered, in a mount namespace
of this process, by a folder that shows what Python needs of them. Ends with `CANNOT` where that is refused.
"""

import os
import sys
import tempfile
from pathlib import Path

from env.sandbox import kernel

NOBODY = 65534
CANNOT = 77


def closed_parent(path: Path) -> Path | None:
    """Returns the first folder on the way to a path that others may not enter."""
    return next((p for p in reversed([path, *path.parents]) if not p.stat().st_mode & 0o001), None)


def show(paths: list[Path]) -> None:
    """Makes folders readable for everybody, in this process and what it starts."""
    hidden = [(path, parent) for path in paths if (parent := closed_parent(path))]
    if not hidden:
        return
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.keep_mounts_private()
    stash = Path(tempfile.mkdtemp())
    for number, (path, _) in enumerate(hidden):
        (stash / str(number)).mkdir()
        kernel.bind(str(path), str(stash / str(number)))
    for parent in dict.fromkeys(parent for _, parent in hidden):
        kernel.mount_memory(str(parent), 1, 1024)
    for number, (path, _) in enumerate(hidden):
        path.mkdir(parents=True, exist_ok=True)
        kernel.bind(str(stash / str(number)), str(path))
        kernel.unmount(str(stash / str(number)))
        (stash / str(number)).rmdir()
    stash.rmdir()


if __name__ == "__main__":
    prefixes = {sys.base_prefix, sys.prefix, *(path for path in sys.path if os.path.isdir(path))}
    try:
        show([Path(prefix) for prefix in sorted(prefixes) if not prefix.startswith(f"{sys.base_prefix}/")])
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as error:
        print(f"root cannot become nobody here: {error}", file=sys.stderr)
        sys.exit(CANNOT)
    os.execv(sys.argv[1], sys.argv[1:])
