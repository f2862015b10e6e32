"""What `vdapo plan` holds the run against; with GPUs, what a stage must find before it starts."""

from __future__ import annotations

from typing import Literal

from pipeline.settings import Section, runtime


class Hardware(Section):
    """What `vdapo plan` holds the run against; with GPUs, what a stage must find before it starts."""

    num_gpus: int = runtime(0, ge=0, description="of one node; 0 plans for a CPU")
    gpu: Literal["h200", "h100", "a100", "rtx4090"] | None = runtime(
        None, description="kind of each, for hours (pipeline/planner/gpus.py); null estimates none"
    )
    gpu_memory_gib: float = runtime(0.0, ge=0, description="usable memory of each")
    host_memory_gib: float = runtime(4.0, gt=0, description="memory of the node")
