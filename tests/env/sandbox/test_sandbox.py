"""The sandbox's promises: outcomes, limits, recovery, boxes that are asked, levels that fail closed."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from env.sandbox import Limits, Outcome, Sandbox, probe, shared_sandbox
from env.sandbox import sandbox as own
from env.sandbox.channel import BrokenChannelError, Inbox, TooLongError, packed
from env.sandbox.clock import Clock
from env.sandbox.guest_process import GuestProcess
from env.sandbox.sandbox import WEAK
from env.sandbox.walls import _has_landlock
from pipeline.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
ROOT = Path(__file__).parents[3]
LIMITS = Limits()
SHORT = Limits(seconds=0.3)
SLOW = pytest.mark.slow
JUDGE = "tests.env.sandbox.naive_judge"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    found = Sandbox()
    yield found
    found.close()


def test_a_program_delivers_a_value_and_its_output_is_kept(sandbox: Sandbox) -> None:
    source = (
        "import sys; print('out'); print('err', file=sys.stderr); deliver([argument['n'] + 1, None, 'é'])"
    )
    outcome = sandbox.run(source, {"n": 41}, LIMITS)
    assert outcome == Outcome("ok", [42, None, "é"], "out\n", "err\n", outcome.seconds)
    assert outcome.seconds < LIMITS.seconds


def test_what_the_page_shows_works() -> None:
    page = (ROOT / "docs" / "sandbox.md").read_text("utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_program_is_main_and_has_the_standard_library(sandbox: Sandbox) -> None:
    source = """
import colorsys, dataclasses, threading
@dataclasses.dataclass
class Point:
    x: int
done = []
thread = threading.Thread(target=lambda: done.append(__name__))
if sys_level >= 2: thread.start(); thread.join()
open('own', 'w').write('x') if sys_level >= 2 else None
deliver([Point(1).x, __name__, colorsys.rgb_to_hsv(1, 1, 1)[2], done])
"""
    outcome = sandbox.run(source.replace("sys_level", str(sandbox.level)), None, LIMITS)
    assert outcome.value == [1, "__main__", 1, ["__main__"] if sandbox.level == 2 else []], outcome


def test_what_was_delivered_before_the_end_is_kept_whatever_the_end(sandbox: Sandbox) -> None:
    assert sandbox.run("deliver(1); deliver(2); 1 / 0", None, LIMITS).value == 2
    outcome = sandbox.run("deliver('so far')\nwhile True: pass", None, SHORT)
    assert (outcome.status, outcome.value) == ("timeout", "so far")


def test_an_exception_shows_the_lines_of_the_program_and_nothing_else(sandbox: Sandbox) -> None:
    outcome = sandbox.run("def f():\n    return [][0]\nf()\n", None, LIMITS)
    assert outcome.status == "raised"
    assert 'File "<program>", line 2, in f\n    return [][0]' in outcome.stderr
    assert "env/sandbox" not in outcome.stderr
    assert "SyntaxError" in sandbox.run("def f(:", None, LIMITS).stderr


def test_the_same_program_gives_the_same_value_each_time(sandbox: Sandbox) -> None:
    source = "import random\ndeliver([random.random(), list({'a', 'b', 'c', 'd'}), hash('x')])"
    assert sandbox.run(source, None, LIMITS).value == sandbox.run(source, None, LIMITS).value


def test_a_value_that_is_no_json_is_the_fault_of_the_program(sandbox: Sandbox) -> None:
    assert sandbox.run("deliver({1, 2})", None, LIMITS).status == "raised"


def test_output_up_to_the_limit_is_kept_and_one_byte_more_is_not_allowed(sandbox: Sandbox) -> None:
    limits = Limits(output_bytes=1000)
    assert len(sandbox.run("print('x' * 999)", None, limits).stdout) == 1000
    assert sandbox.run("print('x' * 1000)", None, limits).status == "output"


def test_a_box_answers_until_its_program_ends(sandbox: Sandbox) -> None:
    source = "for _ in range(2):\n    deliver(receive() * argument)\nprint('done')"
    with sandbox.open(source, 10, LIMITS) as box:
        first, second, end = (box.ask(n) for n in (1, 2, 3))
        assert [first.value, second.value, end.status] == [10, 20, "raised"]
        assert second.stdout + end.stdout == "done\n"
        assert box.ask(4) is end


def test_an_answer_counts_though_the_program_ends_right_after_it(sandbox: Sandbox) -> None:
    for _ in range(10):
        with sandbox.open("deliver(receive())", None, LIMITS) as box:
            assert [box.ask(1).status, box.ask(2).status] == ["ok", "raised"]


def test_the_clock_of_a_box_runs_only_while_it_is_asked(sandbox: Sandbox) -> None:
    with sandbox.open("while True: deliver(receive())", None, SHORT) as box:
        for _ in range(3):
            sandbox.run("import time; time.sleep(0.2)", None, LIMITS)
            assert box.ask("there").value == "there"
    with sandbox.open("receive()\nwhile True: pass", None, SHORT) as box:
        assert box.ask(None).status == "timeout"


@pytest.mark.parametrize("is_alone", [False, True], ids=["the whole job", "the judge alone"])
def test_a_job_that_is_stopped_and_continued_costs_a_program_no_time(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    source = """
import os, time
receive()
deliver(os.getpid())
receive()
end = time.process_time() + 0.1
while time.process_time() < end: pass
deliver("done")
"""
    wait, stops = GuestProcess._wait, iter([False, True])

    def stopped(guest: GuestProcess, seconds: float) -> bool:
        if not next(stops, False):
            return wait(guest, seconds)
        if not is_alone:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds + 0.6)
        if not is_alone:
            os.kill(pid, signal.SIGCONT)
        return False  # as `select` says after a stop that outlasts its time, whatever lies there

    with sandbox.open(source, None, SHORT) as box:
        pid = box.ask(None).value
        assert isinstance(pid, int)
        monkeypatch.setattr(GuestProcess, "_wait", stopped)
        outcome = box.ask(None)
    assert (outcome.status, outcome.value) == ("ok", "done")
    assert outcome.seconds <= SHORT.seconds


def test_a_process_that_gets_no_core_is_nobodys_failure_and_one_that_computes_is_its_own(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clock, "_waited", lambda _: time.monotonic())  # it waits for a core all the time
    limits = Limits(seconds=0.1)
    assert sandbox.run("import time; time.sleep(60)", None, limits).status == "unavailable"
    assert sandbox.run("while True: pass", None, limits).status == "timeout"


def test_the_clock_of_a_process_that_is_gone_does_not_count_what_it_waited_before() -> None:
    clock = Clock(os.getpid())
    assert clock._queue > 0
    clock._pid = 2**26  # nobody's
    assert clock.used <= clock.wall


def test_a_program_holds_no_descriptor_of_ours_however_many_there_are() -> None:
    code = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
from env.sandbox import Limits, Sandbox
looks = "import os\\nfor n in range(4, 2048):\\n  try: deliver([n, os.fstat(n)])\\n  except OSError: pass"
print(Sandbox().run(looks, None, Limits()))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("Outcome(status='ok', value=None, stdout='', stderr=''"), done


def test_a_message_that_nobody_reads_does_not_stop_the_sandbox(sandbox: Sandbox) -> None:
    with sandbox.open("import time; time.sleep(60)", None, SHORT) as box:
        assert box.ask("x" * 10**7).status == "timeout"


def test_two_boxes_are_open_at_once_and_both_die_with_their_context(sandbox: Sandbox) -> None:
    source = "import os\ndeliver(os.getpid())\nwhile True: receive()"
    with sandbox.open(source, None, LIMITS) as one, sandbox.open(source, None, LIMITS) as other:
        pids = [box.ask(None).value for box in (one, other)]
    assert len(set(pids)) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_call_is_answered_by_a_worker_that_is_reused(sandbox: Sandbox) -> None:
    pids = [sandbox.call(f"{JUDGE}:pid", None, LIMITS) for _ in range(3)]
    assert [outcome.status for outcome in pids] == ["ok"] * 3
    assert len({outcome.value for outcome in pids}) == 1


@pytest.mark.parametrize(
    ("how", "status"), [("hang", "timeout"), ("crash", "crashed"), ("memory", "memory"), ("fail", "raised")]
)
def test_a_call_that_fails_is_told_apart_and_the_next_one_is_answered(
    sandbox: Sandbox, how: str, status: str
) -> None:
    assert sandbox.call(f"{JUDGE}:misbehave", how, SHORT).status == status
    assert sandbox.call(f"{JUDGE}:misbehave", "well", LIMITS).value == "well"


def test_what_earlier_texts_left_in_a_worker_takes_no_memory_from_the_next(sandbox: Sandbox) -> None:
    limits = Limits(memory_mb=256)
    found = [sandbox.call(f"{JUDGE}:hoard", 30, limits) for _ in range(6)]
    assert [outcome.value for outcome in found] == [1, 2, 1, 2, 1, 2]
    assert sandbox.call(f"{JUDGE}:hoard", 200, limits).status == "memory"


def test_a_killed_worker_is_replaced_within_the_call(sandbox: Sandbox) -> None:
    first = sandbox.call(f"{JUDGE}:pid", None, LIMITS).value
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    second = sandbox.call(f"{JUDGE}:pid", None, LIMITS)
    assert second.status == "ok"
    assert second.value != first


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_launcher_is_replaced_within_the_run(sandbox: Sandbox, how: int) -> None:
    parent = "import os\ndeliver(os.getppid())"
    launcher = sandbox.run(parent, None, LIMITS).value
    assert isinstance(launcher, int)
    os.kill(launcher, how)
    after = sandbox.run(parent, None, LIMITS)
    assert after.status == "ok"
    assert after.value != launcher


def test_a_launcher_that_dies_under_a_program_costs_it_nothing(sandbox: Sandbox) -> None:
    launcher = sandbox.run("import os\ndeliver(os.getppid())", None, LIMITS).value
    assert isinstance(launcher, int)
    threading.Timer(0.1, os.kill, (launcher, signal.SIGKILL)).start()
    outcome = sandbox.run("import time; time.sleep(0.3); deliver('done')", None, LIMITS)
    assert (outcome.status, outcome.value) == ("ok", "done")


def test_a_machine_that_starts_no_process_makes_outcomes_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox()
    sandbox.close()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert sandbox.run("deliver(1)", None, LIMITS).status == "unavailable"
    assert sandbox.call(f"{JUDGE}:pid", None, LIMITS).status == "unavailable"
    with sandbox.open("deliver(1)", None, LIMITS) as box:
        assert box.ask(None).status == "unavailable"
    monkeypatch.undo()
    assert sandbox.run("deliver(1)", None, LIMITS).value == 1
    sandbox.close()


def test_threads_use_one_sandbox_side_by_side(sandbox: Sandbox) -> None:
    found: dict[int, object] = {}

    def work(number: int) -> None:
        found[number] = sandbox.run("deliver(argument ** 2)", number, LIMITS).value

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number**2 for number in range(4)}


def test_a_module_that_cannot_be_loaded_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match=r"No module named 'env\.sandbox\.nowhere'"):
        sandbox.call("env.sandbox.nowhere:judge", None, LIMITS)


def test_a_process_has_one_shared_sandbox_and_a_fork_another() -> None:
    code = """
import os
from env.sandbox import Limits, shared_sandbox
mine = shared_sandbox()
assert shared_sandbox() is mine
if (pid := os.fork()) == 0:
    own = shared_sandbox()
    assert own is not mine and own.run("deliver(7)", None, Limits()).value == 7
    raise SystemExit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert mine.run("deliver(8)", None, Limits()).value == 8
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_outlives_the_process_that_has_the_sandbox(how: str) -> None:
    code = f"""
import os, signal, sys, threading, time
from env.sandbox import Limits, shared_sandbox
shared_sandbox().run("deliver(1)", None, Limits())
launcher = shared_sandbox().run("import os; deliver(os.getppid())", None, Limits()).value
forever = lambda: shared_sandbox().run("while True: pass", None, Limits(seconds=60))
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
print(launcher, *open(f"/proc/{{launcher}}/task/{{launcher}}/children").read().split(), flush=True)
{how}
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    pids = done.stdout.split()
    assert len(pids) == 2, done.stderr
    for _ in range(100):
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" not in status_of(pid)]
        if not left:
            return
        threading.Event().wait(0.1)
    raise AssertionError(left)


def status_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.parametrize(
    ("without", "hole"),
    [
        pytest.param(("seccomp",), "system calls are not filtered", marks=SLOW),
        (("namespaces", "landlock"), "a file outside can be read"),
        pytest.param(("namespaces", "landlock", "seccomp", "user"), "can be signalled", marks=SLOW),
    ],
)
def test_without_a_wall_nothing_runs_and_the_error_names_it(
    without: tuple[str, ...], hole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEAK, "1")  # is not what accepts
    with pytest.raises(ConfigError, match=hole) as refused:
        Sandbox(without)
    assert WEAK in str(refused.value)


@pytest.mark.parametrize(
    "without",
    [(), pytest.param(("namespaces",), marks=pytest.mark.skipif(not _has_landlock(), reason="no Landlock"))],
    ids=["namespaces", "no namespaces"],
)
def test_a_program_reads_no_installed_package_but_the_libraries_beside_it(
    without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = ["site-packages", "python3/dist-packages", "python3.11/site-packages", "own/path"]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        lib, alias = Path(folder, "lib"), Path(folder, "alias")
        for package in packages:
            (lib / package).mkdir(parents=True)
            (lib / package / "answers").write_text("read")
        (lib / "own" / "library").write_text("read")
        (lib / "link").symlink_to(lib / "site-packages")
        alias.symlink_to(lib)
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{alias}:{alias}/own/path:{lib}")
        monkeypatch.syspath_prepend(f"{lib}/own/path")
        sandbox = Sandbox(without)
        source = """
found = []
for file in argument:
    try: found.append(open(file).read())
    except OSError: found.append("refused")
deliver(found)
"""
        files = [f"{place}/{package}/answers" for place in (lib, alias) for package in [*packages, "link"]]
        found = sandbox.run(source, [f"{alias}/own/library", pytest.__file__, *files], LIMITS).value
        sandbox.close()
    assert found == ["read", *["refused"] * 11]


def test_where_a_program_could_read_what_judges_it_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "__file__", os.__file__)  # as if the project lay in the standard library
    with pytest.raises(ConfigError, match="installed packages can be read"):
        Sandbox()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")
@pytest.mark.parametrize(
    ("refused", "found"),
    [
        ({"unshare": 272}, "^1$"),
        pytest.param({"mount": 165}, "^1$", marks=SLOW),
        pytest.param({"landlock_create_ruleset": 444}, "^2$", marks=SLOW),
        ({"unshare": 272, "landlock_create_ruleset": 444}, "unshare: .*; a file outside can be read"),
        pytest.param({"prctl": 157}, "prctl: Operation not permitted", marks=SLOW),
        pytest.param({"capset": 126}, "capset: Operation not permitted", marks=SLOW),
    ],
    ids=str,
)
def test_a_machine_that_refuses_a_wall_gets_the_next_level_or_an_error_that_says_which(
    sandbox: Sandbox, refused: dict[str, int], found: str
) -> None:
    if sandbox.level < 2:
        pytest.skip("this machine refuses namespaces anyway")
    code = f"""
import struct
from env.sandbox import Sandbox, kernel
refusals = [(0x20, 0, 0, 0)]
for number in {[*refused.values()]}:
    refusals += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50001)]
kernel.refuse_new_privileges()
kernel.install_filter(b"".join(struct.pack("=HBBI", *step) for step in [*refusals, (0x06, 0, 0, 0x7FFF0000)]))
try:
    print(Sandbox().level)
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert re.search(found, done.stdout), done


def test_less_isolation_has_to_be_accepted_by_name_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(WEAK, "accepted")
    monkeypatch.setattr(own, "_SHARED", {})
    monkeypatch.setattr(own, "Sandbox", lambda: Sandbox(("namespaces", "landlock", "seccomp")))
    sandbox = shared_sandbox()
    assert sandbox.level == 0
    assert "a file outside can be read" in sandbox.holes
    assert "a file outside can be read" in capsys.readouterr().err
    assert sandbox.run("deliver(open('own', 'w').write('x'))", None, LIMITS).value == 1
    assert sandbox.run("import os; deliver(os.listdir('.'))", None, LIMITS).value == []
    assert sandbox.run("while True: pass", None, SHORT).status == "timeout"
    sandbox.close()


MARK = b"m" * 16


def test_a_message_is_read_whatever_pieces_it_comes_in() -> None:
    inbox = Inbox(MARK)
    inbox.refill(1000)
    for byte in packed(["value", [1, "é"]], MARK):
        assert inbox.take() is None
        inbox.add(bytes([byte]))
    assert inbox.take() == ("value", [1, "é"])
    assert inbox.take() is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"x", BrokenChannelError),
        (packed(["value", 1], b"n" * 16), BrokenChannelError),
        (MARK + b"\x00\x00\x00\x02[]", BrokenChannelError),
        (MARK + b"\x00\x00\x00\x027 ", BrokenChannelError),
        (MARK + b"\x00\x00\x00\x03[1,", BrokenChannelError),
        (packed(["value", "\ud800"], MARK), BrokenChannelError),
        (MARK + b"\x00\x00\x75\x30" + b"[" * 30000, BrokenChannelError),
        (MARK + b"\x7f\xff\xff\xff", TooLongError),
        (b"m" * 50001, TooLongError),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, error: type[ValueError]) -> None:
    inbox = Inbox(MARK)
    inbox.refill(50000)

    def read() -> None:
        inbox.add(data)
        inbox.take()

    with pytest.raises(error):
        read()
