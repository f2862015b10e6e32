"""Stages that a stage runs to their end."""

import sys
import time
from pathlib import Path

import pytest

from pipeline.artifacts.signals import StopRequested
from stages.wiring.subrun import finish_stage

WAITS = """
import pathlib, signal, sys, time
def stop(number, frame):
    pathlib.Path({ended!r}).write_text("in order")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
pathlib.Path({begun!r}).touch()
time.sleep(600)
"""


def test_a_stop_reaches_the_stage_that_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    code = WAITS.format(begun=str(begun), ended=str(ended))
    monkeypatch.setattr("stages.wiring.subrun._command", lambda *_: [sys.executable, "-c", code])

    def asked() -> None:
        if begun.exists():
            raise StopRequested("SIGUSR1")
        time.sleep(0.01)

    with pytest.raises(StopRequested):
        finish_stage("critic", tmp_path, asked)
    assert ended.read_text() == "in order"


def test_a_stage_finds_what_this_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the package of somebody's own environment."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "somebodys.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(theirs))
    command = [sys.executable, "-c", "import somebodys, stages"]
    monkeypatch.setattr("stages.wiring.subrun._command", lambda *_: command)
    monkeypatch.chdir(tmp_path)
    assert finish_stage("critic", tmp_path, lambda: None) == 0


def test_the_exit_code_is_the_stage_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit(5)"]
    monkeypatch.setattr("stages.wiring.subrun._command", lambda *_: command)
    assert finish_stage("critic", tmp_path, lambda: None) == 5
