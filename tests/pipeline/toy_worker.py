"""A worker for tests: does what it is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import ArtifactError, ExitCode
from pipeline.processes.pool import serve
from pipeline.processes.shared_weights import read_shared
from pipeline.processes.worker import connect_to_parent


def do(job: tuple[str, Any], one_more: Callable[[], None]) -> Any:
    kind, content = job
    if kind == "square":
        for _ in range(abs(content)):
            time.sleep(0.1 * (content < 0))
            one_more()
        return content**2
    if kind == "die once" and not Path(content).exists():
        Path(content).write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "die":
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "say":
        print(content, flush=True)
    if kind == "exit":
        sys.exit(content)
    if kind == "refuse":
        raise ArtifactError(content, code=ExitCode.QUALITY)
    if kind == "fail":
        raise ZeroDivisionError(content)
    if kind == "hang":
        time.sleep(3600)
    if kind == "child":
        return subprocess.Popen(["sleep", "3600"]).pid
    if kind == "read":
        return {name: tensor.tolist() for name, tensor in read_shared(content)}
    return os.getpid() if kind == "pid" else content


if __name__ == "__main__":
    serve(connect_to_parent(), do)
