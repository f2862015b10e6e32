"""How models are trained, in every stage that trains: a section for each backend."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import Section, runtime, setting


class _Training(Section):
    """What every backend has."""

    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "of the products; master weights, moments and gradients are always fp32"
    )
    micro_batch_tokens: int = runtime(
        16384, "packed tokens of a forward pass; of both, where a CPU computes two at a time", ge=1
    )
    recompute: bool = runtime(False, "compute a layer's inside again in the backward pass")
    threads: int = runtime(
        0, "CPU threads; 0 is torch's choice, with deepspeed each rank's share of the cores", ge=0
    )
    lora_rank: int = setting(
        0,
        "width of LoRA adapters trained in place of the weights, scaled by 2; 0 is none",
        ge=0,
        advanced=True,
    )


class Torch(_Training):
    """One process, on a CPU or one GPU."""

    backend: Literal["torch"] = "torch"


class Deepspeed(_Training):
    """ZeRO over several processes of one node or more (--nodes), one GPU each."""

    backend: Literal["deepspeed"] = "deepspeed"
    num_ranks: int = runtime(1, "processes on each node, one GPU each", ge=1)
    deepspeed: str = runtime("configs/deepspeed/zero2_fp32.json", "its configuration, of the same dtype")


Training = Annotated[Torch | Deepspeed, Field(discriminator="backend")]
