"""Counts what a stage and its workers hash, read and send between ranks; stands alone, for any commit.

    python benchmarks/_counting.py stages.actor CONFIG ...

`benchmarks.handoff` runs it so, with HOOK as sitecustomize.py on PYTHONPATH. Every process adds lines
`seconds pid kind number` to the file that VDAPO_COUNTS names: bytes `hashed`, `read` (of files) and `sent`
(of a rank's collectives), a `turn` of the GPUs, and where the stage enters and leaves a phase.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
import time
from typing import Any

COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "all_gather", "broadcast", "reduce_scatter_tensor")
LOG = "VDAPO_COUNTS"
HOOK = "import sys; sys.path.insert(0, {folder!r}); import _counting; _counting.install(); sys.path.pop(0)\n"
"""Of a file sitecustomize.py, which Python runs first in every process."""


def note(kind: str, number: int) -> None:
    """Adds a line."""
    descriptor = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{time.monotonic():.6f} {os.getpid()} {kind} {number}\n".encode())
    os.close(descriptor)


class _Sha256:
    def __init__(self, data: Any = b"", **options: Any) -> None:
        self._hasher = _SHA256(**options)
        self.update(data)

    def update(self, data: Any) -> None:
        note("hashed", memoryview(data).nbytes)
        self._hasher.update(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hasher, name)


_SHA256, _FILE_DIGEST = hashlib.sha256, hashlib.file_digest


def _file_digest(file: Any, kind: Any, **options: Any) -> Any:
    size = os.fstat(file.fileno()).st_size
    note("hashed", size)
    note("read", size)
    return _FILE_DIGEST(file, kind, **options)


class _Slice:
    def __init__(self, found: Any) -> None:
        self._found = found

    def __getitem__(self, place: Any) -> Any:
        tensor = self._found[place]
        note("read", tensor.nbytes)
        return tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)


class _Opened:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._file = _SAFE_OPEN(*arguments, **options)

    def __enter__(self) -> Any:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        tensor = self._file.get_tensor(name)
        note("read", tensor.nbytes)
        return tensor

    def get_slice(self, name: str) -> Any:
        return _Slice(self._file.get_slice(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


_SAFE_OPEN: Any = None


def install() -> None:
    """Puts counting in the place of what reads and hashes and, in a rank, of what it sends."""
    global _SAFE_OPEN
    import safetensors

    hashlib.sha256, hashlib.file_digest = _Sha256, _file_digest  # type: ignore[assignment]
    _SAFE_OPEN = safetensors.safe_open
    setattr(safetensors, "safe_open", _Opened)  # noqa: B010 - a type, to whoever checks types
    if "pipeline.training.deepspeed_rank" in sys.orig_argv:
        import torch.distributed as dist

        for name in COLLECTIVES:
            setattr(dist, name, _sending(getattr(dist, name)))


def _sending(collective: Any) -> Any:
    def counted(*arguments: Any, **options: Any) -> Any:
        tensors = [*arguments, *options.values()]
        note("sent", max(x.nbytes for x in tensors if hasattr(x, "nbytes")))  # the whole, where it is cut
        return collective(*arguments, **options)

    return counted


def _phase(owner: Any, method: str, name: str) -> None:
    call = getattr(owner, method)

    def counted(*arguments: Any, **options: Any) -> Any:
        note(f"+{name}", 0)
        try:
            return call(*arguments, **options)
        finally:
            note(f"-{name}", 0)

    setattr(owner, method, counted)


def _main(module: str) -> None:
    """Runs a stage in this process, its phases marked; engine and trainers take turns, as on shared GPUs."""
    from pipeline.artifacts.checkpoints import Checkpoints
    from pipeline.gpu_sharing import Turns
    from pipeline.training.deepspeed import DeepSpeedTrainer
    from stages.settings.engine import Transformers
    from stages.wiring.learner import Learner

    _phase(Learner, "synced", "hand-off")
    _phase(Checkpoints, "save", "checkpoint")
    _phase(Checkpoints, "latest", "resume")
    _phase(DeepSpeedTrainer, "load_checkpoint", "resume")
    Transformers.shared_gpus = True
    take = Turns._take

    def counted(self: Any, number: int) -> None:
        if self._holder not in (number, None):
            note("turn", 1)
        take(self, number)

    Turns._take = counted  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1])
