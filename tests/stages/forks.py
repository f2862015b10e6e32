"""Runs stages in children forked from a process that has torch loaded already, so that each costs little.

A line of stdin: [environment, stage, argv, kill_after]; kill_after is null or seconds until SIGKILL.
A line of stdout: [exit code or minus the signal that ended it, seconds it took].
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import transformers

from pipeline.runner import run_stage
from pipeline.runs import ROUND_CHAIN
from stages.settings import Config
from tests.pipeline.toy import child

for _name in (*ROUND_CHAIN, "preferences", "dpo"):
    assert importlib.import_module(f"stages.{_name}").STAGE.body  # loads it
assert transformers.Qwen3ForCausalLM is not None  # transformers imports lazily: this loads it


def forked(environment: dict[str, str], stage: str, argv: list[str], kill_after: float | None) -> Any:
    def start() -> int:
        torch.set_num_threads(1)
        return run_stage(sys.modules[f"stages.{stage}"].STAGE, Config, argv)  # type: ignore[attr-defined]

    began, killer = time.monotonic(), None
    pid = child(environment, start)
    if kill_after is not None:
        killer = threading.Timer(kill_after, os.kill, (pid, signal.SIGKILL))
        killer.start()
    # The child stays a zombie until `waitpid`, so its id cannot belong to another process yet.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if killer is not None:
        killer.cancel()
        killer.join()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), time.monotonic() - began


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(forked(*json.loads(line))), flush=True)
