"""How models are trained, in every stage that trains: a section for each backend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Tag

from pipeline.settings import Section, by_kind, runtime, setting


class _Training(Section):
    """What every backend has."""

    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", description="of the products; master weights, moments and gradients are always fp32"
    )
    micro_batch_tokens: int = runtime(16384, ge=1, description="tokens per forward pass, packed")
    recompute: bool = runtime(False, description="compute a layer's inside again in the backward pass")
    threads: int = runtime(
        0, ge=0, description="CPU threads; 0 is torch's choice, with deepspeed each rank's share of the cores"
    )


class Torch(_Training):
    """One process, on a CPU or one GPU."""

    backend: Literal["torch"] = "torch"
    lora_rank: int = setting(
        0,
        ge=0,
        description="width of LoRA adapters trained in place of the weights, scaled by 2; 0 is none",
        advanced=True,
    )


class Deepspeed(_Training):
    """ZeRO over several processes, one GPU each."""

    backend: Literal["deepspeed"] = "deepspeed"
    num_ranks: int = runtime(1, ge=1, description="processes, one GPU each")
    deepspeed: str = runtime(
        "configs/deepspeed/zero2_fp32.json", description="its configuration, of the same dtype"
    )


Training = Annotated[
    Annotated[Torch, Tag("torch")] | Annotated[Deepspeed, Tag("deepspeed")], by_kind("backend", "torch")
]
