"""What this machine has, and whether that is what the configuration counts on."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import ConfigError


def check_gpus(num_gpus: int, gpu_memory_gib: float) -> None:
    """Raises ConfigError if there are fewer GPUs than configured, or less free memory on one of them."""
    if not num_gpus:
        return
    free = free_gpu_memory()
    if len(free) < num_gpus:
        raise ConfigError(
            f"hardware.num_gpus = {num_gpus}, but {_visible(len(free))}. Next: run on a machine that has "
            "them, or set hardware.num_gpus, training.num_ranks and engine.replicas to what is here and ask "
            "vdapo plan"
        )
    for index, gib in enumerate(free[:num_gpus]):
        if gib < gpu_memory_gib:
            raise ConfigError(
                f"GPU {index} has {gib:.1f} GiB free, hardware.gpu_memory_gib = {gpu_memory_gib}. "
                "Next: end what else runs on it (nvidia-smi lists it), or set hardware.gpu_memory_gib to "
                "what is free and ask vdapo plan what fits"
            )


def check_enough_gpus(wanted: Mapping[str, int]) -> None:
    """Raises ConfigError if a setting wants more GPUs than there are; without any, the CPU is shared.

    Without a check workers would use what they find, or fail over what is missing.
    """
    if max(wanted.values(), default=1) == 1:
        return
    visible = len(free_gpu_memory())
    for name, number in wanted.items():
        if 0 < visible < number:
            raise ConfigError(
                f"{name} = {number}, but {_visible(visible)}. Next: at most {visible}, or "
                "CUDA_VISIBLE_DEVICES= (empty) to work on the CPU"
            )


def _visible(number: int) -> str:
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return f"{number} GPUs are visible here (CUDA_VISIBLE_DEVICES is {named})"


def free_gpu_memory() -> list[float]:
    """Returns the free GiB of each visible GPU.

    Asked in a process of its own: a context on every GPU would stay with this one for good.
    """
    code = "import torch.cuda as c; print(*(c.mem_get_info(i)[0] / 2**30 for i in range(c.device_count())))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


def usable_cores() -> int:
    """Returns how many CPU cores this process may keep busy: by affinity, and by the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
