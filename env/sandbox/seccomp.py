"""The system calls that a confined process may make, as a filter for the kernel. What is not named fails.

A list of what is allowed, not of what is forbidden: a call that a later kernel brings is refused, too. A
confined Python computes, reads the interpreter's files, writes what it was given, and starts threads. It
cannot start a process or another program, open a socket, share memory, change a file's owner or mode, watch
or signal another process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from errno import ENOSYS, EPERM
from typing import NamedTuple

# Name: its number on x86_64 and on aarch64, where None says that there is none.
_ALLOWED: dict[str, tuple[int, int | None]] = {
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "msync": (26, 227), "madvise": (28, 233),
    # reading and writing what is open
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "pipe": (22, None), "pipe2": (293, 59),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "close_range": (436, 436),
    # names of files
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "getdents": (78, None),
    "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "statfs": (137, 43),
    "fstatfs": (138, 44), "readlink": (89, None), "readlinkat": (267, 78),
    # waiting
    "poll": (7, None), "select": (23, None), "pselect6": (270, 72), "ppoll": (271, 73),
    "epoll_create": (213, None), "epoll_wait": (232, None), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_create1": (291, 20), "eventfd2": (290, 19), "pause": (34, None), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "sched_yield": (24, 124), "futex": (202, 98),
    "restart_syscall": (219, 128),
    # its own signals and timers
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, None),
    # what it may know
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getpgid": (121, 155),
    "getpgrp": (111, None), "getsid": (124, 156), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "getgroups": (115, 158), "uname": (63, 160),
    "gettimeofday": (96, 169), "time": (201, None), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "times": (100, 153), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179),
    "getcpu": (309, 168), "sched_getaffinity": (204, 123), "getrandom": (318, 278),
    # threads, and its end
    "arch_prctl": (158, None), "set_tid_address": (218, 96), "set_robust_list": (273, 99),
    "rseq": (334, 293), "membarrier": (324, 283), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip

_CHANGES_FOLDERS: dict[str, tuple[int, int | None]] = {
    "creat": (85, None), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35),
}  # fmt: skip

_OPEN = {"open": ((2, None), 1), "openat": ((257, 56), 2)}  # and which argument has the flags
_FCNTL, _IOCTL = (72, 25), (16, 29)
_WRITES = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, __O_TMPFILE
_KILL, _TGKILL, _PRCTL, _PRLIMIT = (62, 129), (234, 131), (157, 167), (302, 261)
_CLONE, _CLONE3 = (56, 220), (435, 435)
_ASKS_DESCRIPTOR = (0, 1, 2, 3, 4, 1030, 1032)  # F_DUPFD.., F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETPIPE_SZ
_ASKS_TERMINAL = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIO..: no TIOCSTI
_SET_NAME, _GET_NAME = 15, 16
_CLONE_THREAD = 0x10000
_WHOLE = 0xFFFFFFFF

MACHINES = ("x86_64", "aarch64")
"""That this knows the numbers of, as `os.uname().machine` names them, in the order of the pairs above."""
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06  # BPF: ld [k], jeq #k, and #k, ret #k


class _Rule(NamedTuple):
    """What happens to a system call: it passes if an argument, under the mask, is one of the values."""

    number: int
    argument: int = 0
    mask: int = 0
    values: Sequence[int] = (0,)
    otherwise: int = EPERM


def filter_program(machine: str, pid: int, *, threads: bool, writes: bool) -> bytes:
    """Returns the filter of a process as `struct sock_filter[]`.

    Args:
        machine: one of `MACHINES`.
        pid: of the process, which may signal only itself.
        threads: whether it may start threads.
        writes: whether it may open files for writing, and make and remove names.
    """
    which = MACHINES.index(machine)
    code = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT_ARCH[which]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),
    ]
    for rule in _rules(which, pid, threads, writes):
        code += _checks(rule)
    code.append((_RETURN, 0, 0, _ERRNO | EPERM))
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _rules(which: int, pid: int, threads: bool, writes: bool) -> Iterable[_Rule]:
    plain = {**_ALLOWED, **(_CHANGES_FOLDERS if writes else {})}
    for numbers in plain.values():
        if (number := numbers[which]) is not None:
            yield _Rule(number)
    for numbers, argument in _OPEN.values():
        if (number := numbers[which]) is not None:
            yield _Rule(number, argument, 0 if writes else _WRITES)
    yield _Rule(_FCNTL[which], 1, _WHOLE, _ASKS_DESCRIPTOR)  # not F_SETOWN, which can signal any process
    yield _Rule(_IOCTL[which], 1, _WHOLE, _ASKS_TERMINAL)
    yield _Rule(_KILL[which], 0, _WHOLE, (pid,))
    yield _Rule(_TGKILL[which], 0, _WHOLE, (pid,))
    yield _Rule(_PRCTL[which], 0, _WHOLE, (_SET_NAME, _GET_NAME))
    yield _Rule(_PRLIMIT[which], 0, _WHOLE, (0, pid))
    if threads:
        yield _Rule(_CLONE[which], 0, _CLONE_THREAD, (_CLONE_THREAD,))
    yield _Rule(_CLONE3[which], 0, 0, (), ENOSYS)  # the C library then uses clone, whose flags can be read


def _checks(rule: _Rule) -> list[tuple[int, int, int, int]]:
    """Returns the instructions for one call; the others jump over them."""
    if not rule.mask and rule.values:
        inside = [(_RETURN, 0, 0, _ALLOW)]
    else:
        inside = [(_LOAD, 0, 0, 16 + 8 * rule.argument), (_AND, 0, 0, rule.mask)]
        for value in rule.values:
            inside += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
        inside.append((_RETURN, 0, 0, _ERRNO | rule.otherwise))
    return [(_EQUAL, 0, len(inside), rule.number), *inside]
