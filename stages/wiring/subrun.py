"""Runs inside a run: their settings as a file beside them, their stages as processes."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.artifacts.disk import remove_temporaries, write_durably

ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.2


def write_config(settings: Mapping[str, Any], home: Path, name: str) -> Path:
    """Writes the configuration of a run `name` in the folder `home`, which holds runs; returns its path.

    `settings` are plain JSON data, a table for each section.
    """
    home.mkdir(parents=True, exist_ok=True)
    remove_temporaries(home)  # of a start that was killed; whoever writes here has the folder to itself
    path = home / f"{name}.yaml"
    run = settings["run"] | {"name": name, "data_dir": str(home)}
    write_durably(path, yaml.safe_dump({**settings, "run": run}, sort_keys=False).encode())
    return path


def python_path() -> str:
    """Returns PYTHONPATH of processes of this root; what it names already stays, a user's own environment."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def finish_stage(stage: str, config: Path, stop_if_asked: Callable[[], None]) -> int:
    """Returns the exit code of a stage that was run to its end, minus the signal of one that was killed.

    If `stop_if_asked` raises, the stage is asked to stop, too, and has ended when this raises.
    """
    process = _begun(stage, config)
    try:
        while process.poll() is None:
            stop_if_asked()
            time.sleep(POLL_SECONDS)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process.returncode


def begin_stage(stage: str, config: Path, log: Path) -> subprocess.Popen[bytes]:
    """Starts a stage that writes to the end of a log."""
    with log.open("ab") as file:
        return _begun(stage, config, stdout=file, stderr=file)


def _begun(stage: str, config: Path, **outputs: Any) -> subprocess.Popen[bytes]:
    """Starts a stage; it is asked to stop if this process dies.

    It has a session of its own: a Ctrl-C meant for this process, which then asks it to stop, is not a second
    signal to it.
    """
    return subprocess.Popen(
        _command(stage, config),
        env={**os.environ, "PYTHONPATH": python_path()},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=stops_with_parent(),
        **outputs,
    )


def stops_with_parent() -> Callable[[], object]:
    """Returns what a child does before its program begins: it is asked to stop if this process dies."""
    prctl = ctypes.CDLL(None).prctl  # found before the fork
    return lambda: prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def last_words(stage: str, log: str) -> str:
    r"""Returns a stage's closing message: all from the last line on that begins with its name.

    Example:
        >>> last_words("actor", "actor: 3 of 5\nactor: the gate failed\nNext: go on\n")
        'the gate failed Next: go on'
    """
    lines = log.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith(f"{stage}: ")]
    return " ".join(lines[begins[-1] :]).removeprefix(f"{stage}: ") if begins else "it said nothing"


def _command(stage: str, config: Path) -> list[str]:
    return [sys.executable, "-m", f"stages.{stage}", str(config)]
