"""Forty one-place faults in what decides what is learned: does `make test` notice them?

    python -m benchmarks.mutants             # hours on two cores
    python -m benchmarks.mutants --number 6  # the first six of them

Faults are drawn by the seed, as many from each of credit, losses, labels, ledger, play and gate. Each is
put into a copy of the tree and tried on the nearest tests, then its room's, then all of `make test`.
A test that fails has caught it. A fault that changes nothing that can be observed stays in the count.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks._faults import Fault, faults_of
from benchmarks._results import Row, Table, measured
from benchmarks._run import ROOT, Asked, Benchmark, main

ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "credit": (("pipeline/credit",), ("pipeline/credit", "tests/pipeline/credit", "tests/golden"), ()),
    "losses": (
        ("pipeline/training/losses.py",),
        ("tests/pipeline/training/test_losses.py",),
        ("tests/pipeline",),
    ),
    "labels": (("critics/labels",), ("critics/labels", "tests/critics/test_targets.py"), ("tests/critics",)),
    "ledger": (
        ("pipeline/artifacts/ledger.py", "pipeline/artifacts/commit.py"),
        ("tests/pipeline/test_commit.py", "tests/pipeline/test_commit_protocol.py"),
        ("tests/pipeline",),
    ),
    "play": (
        ("env/play",),
        ("env/play", "tests/env/test_episodes.py", "tests/env/test_chains.py"),
        ("tests/env",),
    ),
    "gate": (("critics/report/gate.py",), ("tests/critics/test_gate.py",), ("tests/critics",)),
}
"""Room -> where its faults are, the tests that are tried first, and next."""

CRITERIA: dict[str, Callable[[Table], bool]] = {
    "at least 38 of 40 faults are caught": lambda t: t("all", "caught") >= 38,
}


def drawn(seed: int, number: int) -> list[tuple[str, Fault]]:
    """Returns so many faults with their rooms, one room after the other, none twice."""
    rng = random.Random(seed)
    pools = {}
    for room, (places, *_) in ROOMS.items():
        files = [file for place in places for file in python_files(ROOT / place)]
        pools[room] = [fault for file in files for fault in faults_of(ROOT, file)]
        rng.shuffle(pools[room])
    rooms = list(ROOMS)
    return [(room, pools[room].pop()) for room in (rooms[k % len(rooms)] for k in range(number))]


def python_files(place: Path) -> Iterator[Path]:
    """Yields a file, or those of a folder."""
    yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def is_caught(room: str, fault: Fault | None) -> bool:
    """Returns whether a fast test fails in a copy of the tree with the fault, or without one."""
    with tempfile.TemporaryDirectory(prefix="vdapo-fault-") as folder:
        copy = Path(folder)
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in tracked.stdout.splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        if fault:
            fault.put_into(copy)
        return not all(passes(copy, tests) for tests in dict.fromkeys((*ROOMS[room][1:], ())))


def passes(tree: Path, tests: tuple[str, ...]) -> bool:
    """Returns whether tests of a tree pass; none named: all fast ones."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--numprocesses=auto", "--dist=loadfile", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    return not subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False).returncode


def measure(asked: Asked) -> list[Row]:
    """Returns a row for each fault, 1 if it is caught, and their sum."""
    if is_caught("credit", None):
        raise SystemExit("The fast tests fail without a fault. Mend them first")
    rows = []
    for room, fault in drawn(asked.seed, asked.options.number):
        rows += measured(f"{room}: {fault}", {"caught": is_caught(room, fault)})
        print(rows[-1].variant, "caught" if rows[-1].value else "NOT CAUGHT", file=sys.stderr, flush=True)
    return [*rows, *measured("all", {"caught": sum(row.value or 0 for row in rows)}, len(rows))]


BENCHMARK = Benchmark("mutants", __doc__, measure, CRITERIA, seeds=(0,), options={"number": 40})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
