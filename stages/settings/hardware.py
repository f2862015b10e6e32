"""What the run is planned on."""

from __future__ import annotations

from pipeline.settings import Section, runtime


class Hardware(Section):
    """What `vdapo plan` holds the run against; with GPUs, what a stage must find before it starts."""

    num_gpus: int = runtime(0, ge=0, description="of one node; 0 plans for a CPU")
    gpu_memory_gib: float = runtime(0.0, ge=0, description="usable memory of each")
    gpu_tflops: float = runtime(0.0, ge=0, description="dense bf16 TFLOP/s of each, from its data sheet")
    gpu_bandwidth_gbs: float = runtime(0.0, ge=0, description="GB/s of each GPU's memory")
    host_memory_gib: float = runtime(4.0, gt=0, description="memory of the node")
    model: str | None = runtime(
        None, description="config.json to plan with while sft.base is not on this machine"
    )
    critic_model: str | None = runtime(None, description="the same for critic.trunk")
