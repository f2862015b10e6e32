"""The walls around a confined process: what a launcher builds once, and what its child puts around itself.

Which walls there can be is tried, not guessed; what they hold is tested by `env.sandbox.probe`.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from env.sandbox import kernel
from env.sandbox.packages import is_in, parts_without
from env.sandbox.seccomp import MACHINES, filter_program

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
FOLDER_MB, FOLDER_FILES = 16, 1024  # what a program may write into its folder
OPEN_FILES, THREADS, STACK_MB = 64, 16, 8
_BOX = "/box"  # where a child of a launcher with a root of its own starts
_FIRST_UID = 2**31 - 2  # of the users that children of root become: far from those of people and services


class Walls:
    """What keeps the children of this launcher in; made before it imports anything that starts threads.

    Args:
        folder: an empty folder, in which a child starts.
        without: walls to leave off: "namespaces", "landlock", "seccomp", and "user", root's change to nobody.

    Raises:
        OSError: namespaces are refused here.
    """

    def __init__(self, folder: str, without: Collection[str]) -> None:
        self._folder = folder
        self._uid = _unused_uid() if os.geteuid() == 0 and "user" not in without else None
        self.namespaces = sys.platform == "linux" and "namespaces" not in without
        self.landlock = sys.platform == "linux" and "landlock" not in without and _has_landlock()
        self.seccomp = sys.platform == "linux" and "seccomp" not in without and os.uname().machine in MACHINES
        self._rules: kernel.Landlock | None = None
        self._readable: list[str] = []
        if self.namespaces:
            _enter_namespaces()

    @property
    def names(self) -> list[str]:
        """The walls that there are."""
        there = {
            "namespaces": self.namespaces,
            "landlock": self.landlock,
            "seccomp": self.seccomp,
            "user": self._uid is not None,
        }
        return [name for name, is_there in there.items() if is_there]

    @property
    def counts_threads(self) -> bool:
        """Whether the kernel counts a child's threads apart from those of other processes."""
        return self._uid is not None or (self.namespaces and os.geteuid() != 0)

    def close(self, readable: Iterable[str], hidden: Collection[str]) -> None:
        """Shuts this launcher off from all files but `readable`, less what is `hidden`, and its folder."""
        real = {path: os.path.realpath(path) for path in readable if os.path.exists(path)}
        real = {path: place for path, place in real.items() if not is_in(place, hidden)}
        self._readable = list(real)
        if self.namespaces:
            _show_only(real, hidden, self._folder)
            self._folder = _BOX
            kernel.mount_memory(self._folder, FOLDER_MB, FOLDER_FILES)
        else:  # Landlock takes no right away inside of what it allows
            self._readable = [part for place in {*real.values()} for part in parts_without(place, hidden)]
            if self._uid is not None:  # a child may write there unless another wall forbids it
                os.chown(self._folder, self._uid, self._uid)
        self._make_rules()

    def clean(self) -> None:
        """Empties the folder of what the last child left there."""
        if not os.listdir(self._folder):
            return
        if self.namespaces:
            kernel.unmount(self._folder)
            kernel.mount_memory(self._folder, FOLDER_MB, FOLDER_FILES)
            self._make_rules()
        else:
            for entry in os.scandir(self._folder):
                (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)

    def _make_rules(self) -> None:
        if self.landlock:
            if self._rules is not None:
                self._rules.close()
            writable = ["/dev/null", *([self._folder] if self.namespaces else [])]
            self._rules = kernel.Landlock([*self._readable, *DEVICES, self._folder], writable)

    def confine(self, seconds: float | None, memory_mb: int) -> None:
        """Confines this process, a child of the launcher, for good.

        Args:
            seconds: of computing, after which the kernel kills it if nobody did before; None for no bound.
            memory_mb: of address space.

        Raises:
            OSError: a wall cannot be put up.
        """
        os.chdir(self._folder)
        threads = self.seccomp and self.counts_threads
        if seconds is not None:
            _limit(resource.RLIMIT_CPU, int(seconds) + 2)
        _limit(resource.RLIMIT_AS, memory_mb * 2**20)
        _limit(resource.RLIMIT_NPROC, THREADS if threads else 0)
        _limit(resource.RLIMIT_FSIZE, FOLDER_MB * 2**20)
        _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
        _limit(resource.RLIMIT_STACK, STACK_MB * 2**20)
        _limit(resource.RLIMIT_CORE, 0)
        if self._uid is not None:
            os.setgroups([])
            os.setgid(self._uid)
            os.setuid(self._uid)
        if sys.platform == "linux":
            kernel.die_with_parent(signal.SIGKILL)  # after the change of user, which clears it
            kernel.refuse_new_privileges()
            kernel.drop_capabilities()  # of the user namespace, or of root where it stays root
            if self._rules is not None:
                self._rules.enforce()
            if self.seccomp:
                program = filter_program(
                    os.uname().machine, os.getpid(), threads=threads, writes=self.namespaces
                )
                kernel.install_filter(program)


def _limit(what: int, value: int) -> None:
    """Sets both limits, but never raises one. macOS knows some limits that it lets nobody set."""
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(*((ValueError, OSError) if sys.platform == "darwin" else ())):
        resource.setrlimit(what, (value, value))


def _has_landlock() -> bool:
    try:
        return kernel.landlock_abi() > 0
    except OSError:
        return False


def _unused_uid() -> int:
    """Returns a user id that nobody has; launchers that live side by side hardly ever share one."""
    last = 2**16 - 3
    if sys.platform == "linux":
        with open("/proc/self/uid_map", encoding="ascii") as maps:
            last = max(int(first) + int(count) - 1 for first, _, count in map(str.split, maps))
    return min(last, _FIRST_UID) - os.getpid() % 1000


def _enter_namespaces() -> None:
    """Gives this process its own mounts, network and shared memory, as root or in a user namespace."""
    apart = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        kernel.unshare(apart)
    else:
        kernel.unshare(apart | kernel.CLONE_NEWUSER)
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)
    kernel.keep_mounts_private()


def _show_only(readable: Mapping[str, str], hidden: Collection[str], root: str) -> None:
    """Makes a root of a folder: it shows only the paths of `readable`, devices and a place for the box.

    What the paths stand for may be in folders that hold `hidden` ones, which are empty there.
    """
    kernel.mount_memory(root, 1, FOLDER_FILES)
    shown: list[str] = []
    real = {os.path.abspath(path): place for path, place in readable.items()}
    for path in [*sorted(real), *DEVICES]:
        if is_in(path, shown):
            continue
        place = root + path
        if os.path.isdir(path):
            os.makedirs(place, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
        kernel.bind(path, place)
        for folder in hidden:
            if path in real and is_in(folder, [real[path]]):
                kernel.mount_memory(place + folder.removeprefix(real[path]), 1, 1)
        kernel.make_readonly(place, devices=path in DEVICES)
        shown.append(path)
    os.mkdir(root + _BOX)
    kernel.change_root(root)
    kernel.make_readonly("/", devices=True)
