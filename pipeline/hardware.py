"""What this machine has, and whether that is what the configuration counts on."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import ConfigError


def check_gpus(num_gpus: int, gpu_memory_gib: float, wanted: Mapping[str, int]) -> None:
    """Raises ConfigError if there are fewer GPUs than configured, or less free memory on one of them.

    Where no number is configured, no setting may want more than there are (`wanted`: setting -> number); a
    machine without GPUs works on the CPU.
    """
    if num_gpus:
        wanted = {"hardware.num_gpus": num_gpus}
    elif max(wanted.values(), default=1) == 1:
        return
    free = free_gpu_memory()
    for name, number in wanted.items():
        if len(free) < number and (free or num_gpus):
            raise ConfigError(
                f"{name} = {number}, but {len(free)} GPUs are visible here (CUDA_VISIBLE_DEVICES is "
                f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Next: run on a machine that has "
                "them, or set hardware.num_gpus, training.num_ranks and engine.replicas to what is here (0 "
                "and CUDA_VISIBLE_DEVICES= for the CPU) and ask vdapo plan"
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
