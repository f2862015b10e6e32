"""A stage that is told to stop, or that nobody listens to any more: its exit code says what became of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.signals import StopFlag
from pipeline.runner import Start
from tests.pipeline import toy
from tests.pipeline.test_runner import ENVIRONMENT, SCRIPT, Run, data, half_done, run

__all__ = ["data", "half_done", "run"]  # fixtures


@pytest.fixture
def broken_pipe() -> Iterator[int]:
    """The end of a pipe whose reader is gone, as `tee` is after a Ctrl-C."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full_disk() -> Iterator[int]:
    file = os.open("/dev/full", os.O_WRONLY)
    yield file
    os.close(file)


def code_of(folder: Path, signals: int = 0, **outputs: Any) -> int:
    """Returns the exit code of the toy stage in a process of its own."""
    command = [sys.executable, SCRIPT, "toy", folder / "c.yaml"]
    return subprocess.run(command, env=ENVIRONMENT | {"TOY_SIGNALS": str(signals)}, **outputs).returncode


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_stops_a_stage_whose_output_is_gone(data: Path, broken_pipe: int, signals: int) -> None:
    assert code_of(data, signals, stdout=broken_pipe, stderr=broken_pipe) == 75
    is_said = (data / "r" / "toy" / "logs" / "start_000" / "exit.json").exists()
    assert is_said == (signals == 1)  # the second one ends it at once


@pytest.mark.parametrize("output", ["broken_pipe", "full_disk"])
@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_a_stage_that_nobody_can_hear_is_complete_all_the_same(
    half_done: Path, output: str, streams: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """Its first words are that it goes on; they lie in its log."""
    where = request.getfixturevalue(output)
    quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    assert code_of(half_done, **(quiet | dict.fromkeys(streams, where))) == 0
    folder = half_done / "r" / "toy"
    assert read_manifest(folder) is not None
    assert "resuming: 1 of 3 shards" in (folder / "logs" / "start_001" / "stage.log").read_text()


def test_a_body_that_ends_the_program_is_a_defect(run: Run) -> None:
    def make(start: Start[Any]) -> None:
        sys.exit(0)

    run(toy.stage_of("s", [["a"]], make), code=1, words=["a defect: SystemExit"])


@pytest.fixture
def hang_up() -> Iterator[None]:
    """Whatever a test makes of HUP, it is as before when it ends."""
    former = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.usefixtures("hang_up")
def test_a_terminal_that_closes_asks_to_stop_but_not_under_nohup() -> None:
    """Shell and kernel both send it, so it never is the second signal that ends a stage at once."""
    for handler, wanted in ((signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, None)):
        signal.signal(signal.SIGHUP, handler)
        flag = StopFlag()
        with flag.installed():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
        assert flag.signal is wanted
