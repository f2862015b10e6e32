"""The first and last moments of a stage's process: it loads before it can stop, it prints when done."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.artifacts.manifest import read_manifest
from pipeline.errors import ExitCode
from tests.stages.conftest import Lab

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "number", "code"),
    [
        *(("stages.tasks", name, 75) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")),
        ("stages.command", "SIGTERM", -15),
        ("stages.wiring.demonstrator", "SIGTERM", -15),  # a worker: that it was killed means something
    ],
)
def test_a_stage_that_is_told_to_stop_while_it_loads_ends_with_75(
    tmp_path: Path, module: str, number: str, code: int
) -> None:
    told = f"import os, signal, time; os.kill(os.getpid(), signal.{number}); time.sleep(5)"
    (tmp_path / "dataclasses.py").write_text(told)  # among the first that all of them load
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", module, "status", str(tmp_path)]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, preexec_fn=hears_all)
    assert ended.returncode == code, ended.stderr.decode()


def hears_all() -> None:
    """The tests themselves may run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_who_imports_stages_keeps_its_signals() -> None:
    code = "import signal, stages; assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def test_tasks_that_are_made_are_complete_though_their_table_cannot_be_printed(empty: Lab) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "stages.tasks", empty.config]
        assert subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE).returncode == 0
    assert read_manifest(empty.run_dir / "tasks") is not None


@pytest.mark.parametrize("module", ["round", "nodes", "summary"])
def test_a_refusal_that_cannot_be_printed_keeps_its_exit_code(tmp_path: Path, module: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", f"stages.{module}", str(tmp_path / "none.yaml")]
        assert subprocess.run(command, cwd=ROOT, stderr=full).returncode == ExitCode.CONFIG
