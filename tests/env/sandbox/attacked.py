"""Runs the attack corpus in a sandbox of its own and prints, as JSON, what passed and what was harmed.

    python tests/env/sandbox/attacked.py programs|answers [wall to leave off ...]

It is a script so that the same corpus runs as this user and, by `as_nobody.py`, as another one.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from env.sandbox import Limits, Sandbox, guest_process, kernel
from tests.env.sandbox.as_nobody import CANNOT
from tests.env.sandbox.corpus import Places, answers, programs

ROOT = Path(__file__).parents[3]
INPUTS = [0, 7, 19, 12345, 99999999, 271828]
LIMITS = Limits(seconds=0.2, memory_mb=256)
guest_process.STARVED = 100  # for a machine that plays other tests, too

# As a split judge does it: values come out as plain data of exact types, expected ones never go in.
HARNESS = """
solution = {"__name__": "solution"}
exec(compile(argument["source"], "solution.py", "exec"), solution)
found = [solution["solve"](n) for n in argument["inputs"]]
deliver([[type(x).__name__, x] if type(x) in (int, str) else None for x in found])
"""
RIGHT = "def solve(n): return sum(map(int, str(n)))"


def main(kind: str, without: list[str]) -> dict[str, Any]:
    """Returns level, outcomes by name, and what was harmed, which should be nothing."""
    with tempfile.TemporaryDirectory(prefix="vdapo-attacked-") as place:
        folder, boxes = Path(place, "outside"), Path(place, "boxes")
        for path in (folder, boxes):
            path.mkdir()
        for path in (Path(place), folder):
            path.chmod(0o777)
        tempfile.tempdir = str(boxes)
        os.environ["ESCAPE_KEY"] = "secret"
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            port = tcp.getsockname()[1]
            udp.bind(("127.0.0.1", port))
            for listener in (tcp, udp):
                listener.setblocking(False)
            file = folder / "file"
            file.write_text("secret")
            file.chmod(0o666)
            places = {"FILE": str(file), "FOLDER": str(folder), "PORT": str(port), "PID": str(os.getpid())}
            before = state(file)
            sandbox = Sandbox(without)
            play = attack_with_programs if kind == "programs" else attack_with_answers
            outcomes = play(sandbox, places | {"ROOT": str(ROOT)})
            sandbox.close()
            harm = [name for name, value in state(file).items() if value != before[name]]
            harm += [
                name
                for name, heard in {"tcp": tcp.accept, "udp": lambda: udp.recv(1)}.items()
                if hears(heard)
            ]
        harm += [f"left: {path}" for path in boxes.iterdir()] + [f"alive: {pid}" for pid in alive(str(boxes))]
        tempfile.tempdir = None
    return {"level": sandbox.level, "uid": os.getuid(), "outcomes": outcomes, "harm": harm}


def attack_with_programs(sandbox: Sandbox, places: Places) -> dict[str, Any]:
    """Returns name -> status, whether it passed, what it got out, whether a right one passes after it."""
    expected = [["int", sum(map(int, str(n)))] for n in INPUTS]
    found = {}
    for name, source in programs(places).items():
        outcome = sandbox.run(HARNESS, {"source": source, "inputs": INPUTS}, LIMITS)
        passed = outcome.status == "ok" and outcome.value == expected
        after = sandbox.run(HARNESS, {"source": RIGHT, "inputs": INPUTS}, Limits())
        told = json.dumps(outcome.value)[:2000]
        found[name] = [outcome.status, passed, "ESCAPED" in told and told, after.value == expected]
    return found


def attack_with_answers(sandbox: Sandbox, places: Places) -> dict[str, Any]:
    """Returns name -> status and what a judge that evaluates answers said of it."""
    found = {}
    for name, (answer, gold) in answers(places).items():
        argument = {"answer": answer, "gold": gold}
        outcome = sandbox.call("tests.env.sandbox.naive_judge:judge", argument, LIMITS)
        found[name] = [outcome.status, outcome.value]
    return found


def state(file: Path) -> dict[str, Any]:
    """Returns what an attack could change."""
    library = Path(os.__file__)
    shm = Path("/proc/sysvipc/shm")
    return {
        "file": (file.read_text(), file.stat().st_mode, file.stat().st_uid, file.stat().st_mtime_ns),
        "folder": sorted(os.listdir(file.parent)),
        "standard library": [
            (path.stat().st_size, path.stat().st_mtime_ns) for path in library.parent.glob("*.py")
        ],
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if "escaped" in name),
        "shared segments": str(0x5EC4) in shm.read_text() if shm.exists() else False,
        "limits": [resource.getrlimit(what) for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)],
        "cores": sorted(os.sched_getaffinity(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
    }


def hears(listen: Callable[[], object]) -> bool:
    """Returns whether somebody connected or sent something."""
    try:
        listen()
    except BlockingIOError:
        return False
    return True


def alive(word: str) -> list[int]:
    """Returns the other processes whose command line has a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def refused_namespaces() -> str:
    """Returns why this user gets no namespaces here, nothing if it does."""
    wanted = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | (kernel.CLONE_NEWUSER if os.getuid() else 0)
    code = f"from env.sandbox import kernel; kernel.unshare({wanted})"
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    return done.stderr if done.returncode else ""


if __name__ == "__main__":
    if "namespaces" not in sys.argv and (refusal := refused_namespaces()):
        print(f"this machine refuses namespaces: {refusal}", file=sys.stderr)
        sys.exit(CANNOT)
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
