"""A run's numbers, sample rollouts and reports, sent on to wandb; a failure there never ends the run.

Offline unless WANDB_MODE says otherwise; `wandb sync` sends later what was kept. All starts of a stage have
one wandb run: offline each has a folder, whose id and `resume` let a sync append it to those before it.
"""

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.ids import digest
from pipeline.types import Rollout

FINISH_SECONDS = 30.0  # that a stage waits at its end for what is still to be sent
NUM_SAMPLES = 4  # rollouts of an iteration that are sent on
COLUMNS = ("update", "task", "attempt", "draw", "reward", "dialogue")
REPORT_FILES = ("report.json", "report.html", "gate.json")


class Tracker:
    """Sends what it is given until something fails; `identity` names run, stage and stage key."""

    def __init__(self, folder: Path, identity: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._name = f"{identity['run']}/{identity['stage']}"
        self._warn = warn
        self._update = 0
        self._run: Any = None
        with self._never_fatal():
            self._wandb = importlib.import_module("wandb")
            self._run = _begin(self._wandb, folder, self._name, identity)

    @contextmanager
    def _never_fatal(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._run = None
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._warn(f"run.tracking: nothing more is sent ({why}); metrics.jsonl has everything")

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Sends a line of metrics, `update` as its step; what has none belongs to the last update."""
        with self._never_fatal():
            self._update = values.get("update", self._update)
            if self._run is not None:
                self._run.log({**values, "update": self._update})

    def samples(self, update: int, rollouts: Sequence[Rollout]) -> None:
        """Sends the first few rollouts as a table."""
        if self._run is None:
            return
        with self._never_fatal():
            table = self._wandb.Table(columns=list(COLUMNS))
            for r in rollouts[:NUM_SAMPLES]:
                table.add_data(update, r.task_id, r.attempt, r.draw, r.reward, dialogue(r))
            self._run.log({"update": update, "samples": table})

    def close(self) -> None:
        """Sends the stage's report, and waits until everything is sent, but not for long."""
        if self._run is None:
            return
        with self._never_fatal():
            files = [path for name in REPORT_FILES if (path := self._folder / name).is_file()]
            if files:
                artifact = self._wandb.Artifact(self._name.replace("/", "-"), type="report")
                for path in files:
                    artifact.add_file(str(path))
                self._run.log_artifact(artifact)
            self._run.finish()


def _begin(wandb: Any, folder: Path, name: str, identity: Mapping[str, str]) -> Any:
    """Returns the wandb run of a stage; its id, made at the first start, is kept in the stage's logs."""
    kept = folder / "logs" / "wandb_id"
    if not kept.is_file() or not kept.read_text():
        kept.write_text(digest("wandb", dict(identity), time.time())[:16])
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "vdapo"),
        id=kept.read_text(),
        resume="allow",
        name=name,
        config=dict(identity),
        dir=str(folder / "logs"),
        mode=os.environ.get("WANDB_MODE", "offline"),
        settings=wandb.Settings(
            console="off", silent=True, finish_timeout=FINISH_SECONDS, finish_timeout_raises=True
        ),
    )
    run.define_metric("update")
    run.define_metric("*", step_metric="update")
    return run


def dialogue(rollout: Rollout) -> str:
    """Returns a rollout's messages as text, one to a line."""
    return "\n".join(
        f"{message['role']}: {message.get('content') or ''}"
        + (f" {json.dumps(calls, ensure_ascii=False)}" if (calls := message.get("tool_calls")) else "")
        for message in rollout.messages
    )
