"""Follows the file of a `Tracker` and sends it to wandb: run as a process of its own, and by nothing else.

Offline unless WANDB_MODE says otherwise; `wandb sync` sends later what was kept. All starts of a stage have
one wandb run.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wandb

from pipeline.ids import digest

POLL_SECONDS = 0.2
REPORT_FILES = ("report.json", "report.html", "gate.json")


def run_id(folder: Path, identity: dict[str, str]) -> str:
    """Returns the id of a stage's wandb run: made at the first start, kept in the stage's logs."""
    path = folder / "logs" / "wandb_id"
    if not path.is_file() or not path.read_text():
        path.write_text(digest("wandb", identity, time.time())[:16])
    return path.read_text()


def follow(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file that is being written, until its end is said or its writer is gone."""
    parent = os.getppid()
    with path.open(encoding="utf-8") as file:
        text = ""
        while True:
            text += file.readline()
            if text.endswith("\n"):
                record = json.loads(text)
                if "end" in record:
                    return
                yield record
                text = ""
            elif os.getppid() != parent:
                return
            else:
                time.sleep(POLL_SECONDS)


def send(folder: Path, inbox: Path, identity: dict[str, str]) -> None:
    """Sends metrics with `update` as their step, samples as tables, and at the end the stage's report."""
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "vdapo"),
        id=run_id(folder, identity),
        resume="allow",
        name=f"{identity['run']}/{identity['stage']}",
        config=identity,
        dir=str(folder / "logs"),
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        settings=wandb.Settings(console="off", silent=True),
    )
    run.define_metric("update")
    run.define_metric("*", step_metric="update")
    update = 0
    for record in follow(inbox):
        if "samples" in record:
            samples = record["samples"]
            table = wandb.Table(columns=samples["columns"], data=samples["rows"])
            run.log({"update": samples["update"], "samples": table})
            continue
        values = {key: numbers(value) for key, value in record["metrics"].items()}
        update = values.setdefault("update", update)  # what is measured between updates belongs to the last
        run.log(values)
    files = [path for name in REPORT_FILES if (path := folder / name).is_file()]
    if files:
        artifact = wandb.Artifact(f"{identity['run']}-{identity['stage']}", type="report")
        for path in files:
            artifact.add_file(str(path))
        run.log_artifact(artifact)
    run.finish()


def numbers(value: Any) -> Any:
    """Returns NaN and infinities, which metrics hold as text, as numbers."""
    return float(value) if value in ("nan", "inf", "-inf") else value


if __name__ == "__main__":
    try:
        send(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    except Exception as error:
        traceback.print_exception(error)
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split())[:300])  # the warning's words
