import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import ExitCode
from pipeline.processes.life import LIMIT, Scope, Silence, workers_of
from pipeline.processes.shared_weights import SharedWeights, read_shared
from pipeline.processes.worker import Worker, WorkerFailedError, WorkerHungError

ROOT = Path(__file__).parents[2]
ENV = {"PYTHONPATH": str(ROOT)}


def ask(worker: Worker, kind: str, content: object = None) -> Any:
    """Returns a worker's answer."""
    worker.send((kind, content))
    return worker.receive(60)[1]


def started(name: str, says: str = "here", log: Path | None = None) -> Worker:
    """Returns a worker that has said something."""
    worker = Worker("tests.pipeline.toy_worker", name, env=ENV, log=log)
    assert worker.receive(60) == ("ready", None)
    assert ask(worker, "say", says) == says
    return worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = started("the worker")
    yield worker
    worker.close()


def is_running(pid: int) -> bool:
    """Returns whether a process lives; one that ended but was not waited for does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_worker_that_ends_itself_over_full_memory_is_a_defect_with_advice() -> None:
    worker = started("the worker", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(WorkerFailedError, match=r"(?s)status 3.*CUDA out of memory.*less load or memory"):
        ask(worker, "exit", 3)


def test_a_silent_worker_is_killed(worker: Worker) -> None:
    worker.send(("hang", None))
    with pytest.raises(WorkerHungError, match=r"(?s)no sign of life for 1 s in a nap: .*do\n") as raised:
        worker.receive(1, "a nap")
    assert raised.value.code == ExitCode.STOPPED
    assert "waiting, last sign after its imports, number 1. It was killed" in str(raised.value)
    assert "toy_worker.py" in str(raised.value)  # its stack
    assert not is_running(worker.pid)


def test_a_worker_that_is_stopped_is_killed_too(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    worker.send(("pid", None))
    with pytest.raises(WorkerHungError, match="in its work: stopped"):
        worker.receive(1)
    assert not is_running(worker.pid)


def test_a_message_that_nobody_reads_does_not_hold_up_whoever_sends_it(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    with workers_of(Scope(None, patience=1 / LIMIT)), pytest.raises(WorkerHungError, match="in receiving a"):
        worker.send(("say", "x" * 10**7))
    assert not is_running(worker.pid)


def test_what_cannot_be_sent_is_said_and_the_worker_goes_on(worker: Worker) -> None:
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        worker.send(("say", lambda: None))
    assert ask(worker, "say", "y" * 10**6) == "y" * 10**6


def test_a_worker_that_goes_on_working_may_take_any_time(worker: Worker) -> None:
    worker.send(("square", -40))  # 40 items of a tenth of a second each
    silence = Silence([worker.signs])
    while (answer := worker.receive(3))[0] == "items":
        assert silence.seconds() < 3
    assert answer == ("done", 1600)


def test_whoever_waits_for_a_worker_looks_meanwhile(worker: Worker) -> None:
    def look() -> None:
        raise KeyboardInterrupt

    worker.send(("hang", None))
    with pytest.raises(KeyboardInterrupt):
        worker.receive(60, look=look)


@pytest.mark.parametrize("named", [False, True])
def test_workers_of_a_stage_keep_their_logs_apart(named: bool, tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log" if named else None
    with workers_of(Scope(tmp_path)):
        workers = [started("rank 0", says, log) for says in ("first", "second")]
    for worker in workers:
        worker.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "rank-0.log": "first\n",
        "rank-0-2.log": "second\n",
    }


def test_closing_ends_the_worker_and_what_it_started(worker: Worker) -> None:
    child = ask(worker, "child")
    worker.close()
    worker.close()
    assert not is_running(worker.pid)
    assert eventually(lambda: not is_running(child))


@pytest.mark.parametrize("of", ["worker.pid", "child"])
def test_a_worker_and_what_it_started_die_with_the_process_that_started_them(of: str) -> None:
    """Such as the processes of vLLM over several GPUs, when the stage is killed."""
    code = textwrap.dedent(f"""
        import os
        from pipeline.processes.worker import Worker
        worker = Worker("tests.pipeline.toy_worker", "w", env={ENV!r})
        worker.send(("child", None))
        _, child = worker.receive(60), worker.receive(60)[1]
        print({of}, flush=True)
        worker.send(("hang", None))
        os.kill(os.getpid(), 9)
    """)
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    try:
        assert eventually(lambda: not is_running(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_another_process_reads_shared_weights(worker: Worker) -> None:
    shared = SharedWeights()
    weights = {"a": torch.arange(5.0), "b": torch.tensor([[1.5, -2.0]]), "empty": torch.zeros(0)}
    assert ask(worker, "read", shared.write(weights)) == {name: t.tolist() for name, t in weights.items()}
    layout = shared.write({"a": torch.tensor([1.0 + 2**-12])}, torch.bfloat16)  # shorter, and rounded
    assert {name: tensor.tolist() for name, tensor in read_shared(layout)} == {"a": [1.0]}
    assert ask(worker, "read", layout) == {"a": [1.0]}
    shared.close()
    shared.close()
