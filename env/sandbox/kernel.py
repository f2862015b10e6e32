"""The few calls of the Linux kernel that confine a process, by ctypes: no package is needed for them.

Each raises OSError where the kernel refuses it or does not know it, and AttributeError off Linux.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_RDONLY, _NOSUID, _NODEV = 1, 2, 4
_CAPABILITY_VERSION_3 = 0x20080522

# Rights to files, by the number of Landlock's bit (linux/landlock.h).
_EXECUTE, _WRITE, _READ, _LIST, _REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_FILE = 0, 1, 2, 3, 4, 5, 7, 8
_TRUNCATE = 14
_FILE_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock's ABI -> number of rights to files that it can take; later ones take as many as the last."""


def _call(name: str, *arguments: Any, what: str = "") -> int:
    result: int = getattr(_LIBC, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what or name}: {os.strerror(number)}")
    return result


def _system_call(number: int, *arguments: Any) -> int:
    """Makes a system call that the C library may have no function for."""
    given = (ctypes.c_long(x) if isinstance(x, int) else x for x in (number, *arguments))
    return _call("syscall", *given, what=f"system call {number}")


def unshare(flags: int) -> None:
    """Gives this process namespaces of its own."""
    _call("unshare", flags)


def die_with_parent(signal_number: int) -> None:
    """Makes the kernel send this process a signal when the thread that forked it ends."""
    _call("prctl", _PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def refuse_new_privileges() -> None:
    """Makes set-uid bits and file capabilities mean nothing from now on."""
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities() -> None:
    """Gives up every capability, also those of a user namespace."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def keep_mounts_private() -> None:
    """Keeps what this mount namespace mounts from all others."""
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def mount_memory(place: str, megabytes: int, files: int) -> None:
    """Mounts a file system in memory with bounds on its size and its number of files."""
    options = f"size={megabytes}m,nr_inodes={files},mode=1777"
    _call("mount", b"none", place.encode(), b"tmpfs", _NOSUID | _NODEV, options.encode())


def bind(source: str, place: str) -> None:
    """Shows a folder or file at another place, where nothing can be written."""
    _call("mount", source.encode(), place.encode(), None, _MS_BIND | _MS_REC, None)


def make_readonly(place: str, *, devices: bool = False) -> None:
    """Makes a mount read-only, with all below it unless it holds `devices`."""
    wanted = _RDONLY | _NOSUID | (0 if devices else _NODEV)
    attributes = (ctypes.c_uint64 * 4)(wanted, 0, 0, 0)
    depth = 0 if devices else _AT_RECURSIVE
    _system_call(_MOUNT_SETATTR, _AT_FDCWD, place.encode(), depth, attributes, ctypes.sizeof(attributes))


def unmount(place: str) -> None:
    """Takes a mount out of the tree; it is gone when nobody uses it."""
    _call("umount2", place.encode(), _MNT_DETACH)


def change_root(folder: str) -> None:
    """Makes a mount the root of this mount namespace, and the former root unreachable."""
    os.chdir(folder)
    _system_call(_PIVOT_ROOT[os.uname().machine], b".", b".")
    unmount(".")
    os.chdir("/")


def landlock_abi() -> int:
    """Returns the version of Landlock that the kernel has."""
    return _system_call(_LANDLOCK_CREATE, None, 0, 1)


class Landlock:
    """A set of rules of Landlock: files that may be read, files and folders that may also be written."""

    def __init__(self, readable: Iterable[str], writable: Iterable[str]) -> None:
        abi = landlock_abi()
        handled = (1 << _FILE_RIGHTS_OF_ABI[min(abi, max(_FILE_RIGHTS_OF_ABI))]) - 1
        network = 0b11 if abi >= 4 else 0  # to bind and to connect by TCP: nowhere
        scope = 0b11 if abi >= 6 else 0  # abstract sockets and signals: only to what is as confined
        attributes = (ctypes.c_uint64 * 3)(handled, network, scope)
        size = 8 if abi < 4 else 16 if abi < 6 else 24
        self._descriptor = _system_call(_LANDLOCK_CREATE, attributes, size, 0)
        read = 1 << _READ
        write = read | 1 << _WRITE | 1 << _TRUNCATE
        lists = 1 << _LIST
        makes = sum(1 << right for right in (_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_FILE))
        for path in readable:
            self._allow(path, read | (lists if os.path.isdir(path) else 0))
        for path in writable:
            self._allow(path, (write | (lists | makes if os.path.isdir(path) else 0)) & handled)

    def _allow(self, path: str, rights: int) -> None:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = rights.to_bytes(8, "little") + place.to_bytes(4, "little")
            _system_call(_LANDLOCK_ADD, self._descriptor, 1, rule, 0)
        finally:
            os.close(place)

    def enforce(self) -> None:
        """Binds this process, which refused new privileges, to the rules for good."""
        _system_call(_LANDLOCK_RESTRICT, self._descriptor, 0)

    def close(self) -> None:
        """Frees the rules here; they hold where they were enforced."""
        os.close(self._descriptor)


def install_filter(program: bytes) -> None:
    """Makes the kernel ask a seccomp filter, as `struct sock_filter[]`, about every further system call."""
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    head = Program(len(program) // 8, ctypes.addressof(code))
    _call("prctl", 22, 2, ctypes.byref(head), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
