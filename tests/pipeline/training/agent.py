"""Lends ranks of this machine to whoever holds a folder, as a stage's command does; has its exit code."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.processes.worker import Worker
from pipeline.training import rank_group
from pipeline.training.rank_agent import lent

ROOT = Path(__file__).parents[3]


def scripted(module: str, name: str, *, env: dict[str, str]) -> Worker:
    """Returns a stand-in for a rank."""
    assert module == "pipeline.training.deepspeed_rank"
    return Worker("tests.pipeline.training.scripted_rank", name, env=env | {"PYTHONPATH": str(ROOT)})


if __name__ == "__main__":
    folder, patience, kind = sys.argv[1:]
    if kind == "scripted":
        patched: Any = rank_group
        patched.Worker = scripted
        patched = sys.modules
        patched["torch"] = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))  # takes no time
    while (ended := lent(Path(folder), float(patience), lambda text: None)) is None:
        time.sleep(0.05)
    print(ended[1], flush=True)
    sys.exit(ended[0])
