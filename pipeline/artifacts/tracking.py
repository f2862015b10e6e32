"""A run's numbers, sample rollouts and reports sent on to a tracking service, which never holds the run up.

The stage appends to a file; a process of its own follows that file and alone imports wandb. If it fails or
hangs, there is one warning, and metrics.jsonl has everything.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts.metrics import plain
from pipeline.types import Rollout

CLOSE_SECONDS = 30.0
"""How long a stage waits at its end for what is still to be sent."""
NUM_SAMPLES = 4
"""Rollouts of an iteration that are sent on."""
COLUMNS = ("update", "task", "attempt", "draw", "reward", "dialogue")


class Tracker:
    """Sends on what is written to it; `identity` names run, stage and stage key, `warn` says a failure."""

    def __init__(
        self, folder: Path, log_folder: Path, identity: Mapping[str, str], warn: Callable[[str], None]
    ) -> None:
        self._inbox = log_folder / "tracking.jsonl"
        self._log = log_folder / "tracking.log"
        self._warn = warn
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._inbox.touch()
            with self._log.open("wb") as log:
                sink = [sys.executable, "-m", "pipeline.artifacts.wandb_sink"]
                self._process = subprocess.Popen(
                    [*sink, str(folder), str(self._inbox), json.dumps(dict(identity))],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a Ctrl-C is meant for the stage
                )
        except OSError as error:
            self._give_up(str(error))

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Sends a line of metrics.jsonl."""
        self._write({"metrics": values})

    def samples(self, update: int, rollouts: Sequence[Rollout]) -> None:
        """Sends the first few rollouts as rows of a table."""
        rows = [[update, r.task_id, r.attempt, r.draw, r.reward, dialogue(r)] for r in rollouts[:NUM_SAMPLES]]
        self._write({"samples": {"update": update, "columns": COLUMNS, "rows": rows}})

    def close(self) -> None:
        """Waits until everything is sent, but not for long."""
        self._write({"end": True})
        if self._process is None:
            return
        try:
            if self._process.wait(CLOSE_SECONDS):
                self._give_up(self._last_words())
        except subprocess.TimeoutExpired:
            self._give_up(f"it was not done {CLOSE_SECONDS:.0f} s after the stage")

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._process is None:
            return
        if self._process.poll():
            self._give_up(self._last_words())
            return
        try:
            with self._inbox.open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain(record), allow_nan=False) + "\n")
        except (OSError, TypeError, ValueError) as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._warn(f"run.tracking: nothing more is sent ({why}); metrics.jsonl has everything")

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text("utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        return next((line.strip() for line in reversed(lines) if line.strip()), "its process ended")


def dialogue(rollout: Rollout) -> str:
    """Returns a rollout's messages as text, one to a line."""
    return "\n".join(
        f"{message['role']}: {message.get('content') or ''}"
        + (f" {json.dumps(calls, ensure_ascii=False)}" if (calls := message.get("tool_calls")) else "")
        for message in rollout.messages
    )
