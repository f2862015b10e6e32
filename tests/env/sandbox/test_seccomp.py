"""The filter of system calls, run by a small interpreter: also for a machine that this one is not."""

import struct
from errno import ENOSYS, EPERM

import pytest

from env.sandbox.seccomp import MACHINES, filter_program

X86, ARM = MACHINES
ARCH = {X86: 0xC000003E, ARM: 0xC00000B7}
ALLOW, KILL = "allow", "kill"
PID = 1234


def decide(machine: str, number: int, *arguments: int, arch: int | None = None, **options: bool) -> str | int:
    """Returns "allow", "kill", or the error number that a call ends with."""
    program = filter_program(machine, PID, **({"threads": True, "writes": True} | options))
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *padded)
    steps = list(struct.iter_unpack("=HBBI", program))
    at = held = 0
    while True:
        code, if_true, if_false, k = steps[at]
        at += 1
        if code == 0x20:
            [held] = struct.unpack_from("=I", data, k)
        elif code == 0x54:
            held &= k
        elif code == 0x15:
            at += if_true if held == k else if_false
        else:
            assert code == 0x06
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(k, k & 0xFFFF)


@pytest.mark.parametrize(
    ("name", "numbers"),
    {
        "socket": (41, 198), "connect": (42, 203), "socketpair": (53, 199), "execve": (59, 221),
        "ptrace": (101, 117), "setuid": (105, 146), "unshare": (272, 97), "mount": (165, 40),
        "chroot": (161, 51), "memfd_create": (319, 279), "shmget": (29, 194), "bpf": (321, 280),
        "io_uring_setup": (425, 425), "pidfd_open": (434, 434), "process_vm_readv": (310, 270),
        "fchmodat": (268, 53), "fchownat": (260, 54), "utimensat": (280, 88), "linkat": (265, 37),
        "symlinkat": (266, 36), "openat2": (437, 437), "seccomp": (317, 277), "tkill": (200, 130),
        "sched_setaffinity": (203, 122), "setpriority": (141, 140), "a call of a later kernel": (999, 999),
    }.items(),
)  # fmt: skip
def test_what_is_not_named_is_refused(name: str, numbers: tuple[int, int]) -> None:
    assert [decide(machine, number) for machine, number in zip(MACHINES, numbers, strict=True)] == [EPERM] * 2


@pytest.mark.parametrize(
    ("machine", "number"), [(X86, 0), (X86, 1), (X86, 9), (ARM, 63), (ARM, 64), (ARM, 222)]
)
def test_reading_writing_and_memory_are_allowed(machine: str, number: int) -> None:
    assert decide(machine, number) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_ends_the_process(machine: str) -> None:
    assert decide(machine, 0, arch=0x40000003) == KILL


def test_the_numbers_of_x32_are_none() -> None:
    assert decide(X86, 0x40000000) == EPERM


@pytest.mark.parametrize(("machine", "clone"), [(X86, 56), (ARM, 220)])
def test_a_thread_may_start_where_it_is_counted_and_a_process_never(machine: str, clone: int) -> None:
    thread, process, namespace = 0x3D0F00, 17, 0x10000000
    assert decide(machine, clone, thread) == ALLOW
    assert decide(machine, clone, thread, threads=False) == EPERM
    assert decide(machine, clone, process) == decide(machine, clone, namespace) == EPERM
    assert decide(machine, 435) == ENOSYS


@pytest.mark.parametrize(("machine", "kill", "tgkill"), [(X86, 62, 234), (ARM, 129, 131)])
def test_a_process_signals_only_itself(machine: str, kill: int, tgkill: int) -> None:
    for number in (kill, tgkill):
        assert decide(machine, number, PID, 9) == ALLOW
        for other in (0, 1, PID + 1, 2**64 - 1, 2**64 - PID):
            assert decide(machine, number, other, 9) == EPERM


@pytest.mark.parametrize(("machine", "openat", "unlinkat"), [(X86, 257, 263), (ARM, 56, 35)])
def test_files_open_for_reading_alone_where_nothing_bounds_what_is_written(
    machine: str, openat: int, unlinkat: int
) -> None:
    read, close_on_exec = 0, 0o2000000
    for flags in (0o1, 0o2, 0o100, 0o1000, 0o20200000):
        assert decide(machine, openat, 0, 0, flags | close_on_exec) == ALLOW
        assert decide(machine, openat, 0, 0, flags | close_on_exec, writes=False) == EPERM
    assert decide(machine, openat, 0, 0, read | close_on_exec, writes=False) == ALLOW
    assert [decide(machine, unlinkat, writes=writes) for writes in (True, False)] == [ALLOW, EPERM]


@pytest.mark.parametrize(("machine", "fcntl", "ioctl", "prlimit"), [(X86, 72, 16, 302), (ARM, 25, 29, 261)])
def test_calls_that_can_reach_another_process_are_allowed_for_this_one_alone(
    machine: str, fcntl: int, ioctl: int, prlimit: int
) -> None:
    get_flags, set_owner, set_signal, terminal_type, terminal_push = 3, 8, 10, 0x5401, 0x5412
    assert [decide(machine, fcntl, 5, what) for what in (get_flags, set_owner, set_signal)] == [
        ALLOW,
        EPERM,
        EPERM,
    ]
    assert [decide(machine, ioctl, 0, what) for what in (terminal_type, terminal_push)] == [ALLOW, EPERM]
    assert [decide(machine, prlimit, pid) for pid in (0, PID, 1)] == [ALLOW, ALLOW, EPERM]
