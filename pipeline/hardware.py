"""What this machine has, and whether that is what the configuration counts on."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError


def check_gpus(num_gpus: int, gpu_memory_gib: float, wanted: Mapping[str, int]) -> None:
    """Raises ConfigError if there are fewer GPUs than configured, or less free memory on one of them.

    Where none is configured, those take no visible one that would (`wanted`: setting -> number): others,
    such as the critic that scores, would stay on the CPU beside them. A machine without GPUs is one.
    """
    if not num_gpus and not wanted:
        return
    free = free_gpu_memory()
    if len(free) < num_gpus or (free and not num_gpus):
        asked = "" if num_gpus else f", which {' and '.join(wanted)} would take, and nothing else"
        raise ConfigError(
            f"hardware.num_gpus = {num_gpus}, but {len(free)} GPUs are visible here{asked} "
            f"(CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Next: run on a "
            "machine that has them, or set hardware.num_gpus, training.num_ranks and engine.replicas to what "
            "is here (0 and CUDA_VISIBLE_DEVICES= for the CPU) and ask vdapo plan"
        )
    for index, gib in enumerate(free[:num_gpus]):
        if gib < gpu_memory_gib:
            raise ConfigError(
                f"GPU {index} has {gib:.1f} GiB free, hardware.gpu_memory_gib = {gpu_memory_gib}. "
                "Next: end what else runs on it (nvidia-smi lists it), or set hardware.gpu_memory_gib to "
                "what is free and ask vdapo plan what fits"
            )


def free_gpu_memory() -> list[float]:
    """Returns the free GiB of each visible GPU.

    Asked in a process of its own: a context on every GPU would stay with this one for good. Raises
    ConfigError, with what CUDA says, if there are GPUs that cannot be used.
    """
    done = subprocess.run([sys.executable, "-c", _ASK], check=False, capture_output=True, text=True)
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConfigError(
            f"CUDA does not work here: {cause}. "
            "Next: see whether nvidia-smi works, and whether its driver is new enough for this torch "
            "(python -m torch.utils.collect_env), or set CUDA_VISIBLE_DEVICES= for the CPU"
        )
    return [float(line) for line in done.stdout.split()]


_ASK = "import torch.cuda as c; print(*(c.mem_get_info(i)[0] / 2**30 for i in range(c.device_count())))"


def usable_cores() -> int:
    """Returns how many CPU cores this process may keep busy: by affinity, and by the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


_PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "RTX 4090": 165e12,
}
"""bf16 operations a second on tensor cores, dense, by NVIDIA's data sheets; the first name that fits."""


def peak_operations(gpu: str) -> float | None:
    """Returns what a GPU of that name can do in bf16, operations a second; None if it is not known here.

    Example:
        >>> peak_operations("NVIDIA H100 80GB HBM3")
        989000000000000.0
    """
    return next((most for name, most in _PEAKS.items() if name in gpu), None)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What a process took of its GPU since it was asked last."""

    name: str
    peak_gib: float  # of what torch has allocated


def gpu_use() -> list[GpuUse]:
    """Returns what this process took of its present GPU; nothing without one."""
    import torch

    if not torch.cuda.is_available():
        return []
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return [GpuUse(torch.cuda.get_device_name(), peak)]


def host_memory() -> tuple[float, float]:
    """Returns GiB resident in this process and all that it started, now, and the sum of their peaks.

    Memory that processes share counts for each of them.
    """
    now = peak = 0
    processes = [os.getpid()]
    while processes:
        folder = Path(f"/proc/{processes.pop()}")
        with contextlib.suppress(OSError):  # one may end meanwhile
            for line in (folder / "status").read_text("utf-8").splitlines():
                name, _, value = line.partition(":")
                if name in ("VmRSS", "VmHWM"):
                    now += int(value.split()[0]) * (name == "VmRSS")
                    peak += int(value.split()[0]) * (name == "VmHWM")
            for thread in (folder / "task").iterdir():
                processes += map(int, (thread / "children").read_text("utf-8").split())
    return now / 2**20, peak / 2**20
