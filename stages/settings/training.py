"""How models are trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.settings import Section, runtime


class Training(Section):
    """How models are trained, in every stage that trains."""

    backend: Literal["torch", "deepspeed"] = Field("torch", description="training backend")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the products; master weights, moments and gradients are always fp32"
    )
    lora_rank: int = Field(
        0, ge=0, description="torch: width of LoRA adapters trained in place of the weights; 0 is none"
    )
    lora_alpha: int = Field(32, gt=0, description="LoRA: an adapter's product is scaled by alpha / rank")
    micro_batch_tokens: int = runtime(16384, ge=1, description="tokens per forward pass, packed")
    piece_tokens: int = runtime(1024, ge=1, description="tokens whose logits exist at once")
    recompute: bool = runtime(False, description="compute a layer's inside again in the backward pass")
    threads: int = runtime(
        0, ge=0, description="CPU threads; 0 is torch's choice, with deepspeed each rank's share of the cores"
    )
    num_ranks: int = runtime(1, ge=1, description="deepspeed: processes, one GPU each")
    deepspeed: str = runtime(
        "configs/deepspeed/zero2_fp32.json", description="deepspeed: its configuration, of the same dtype"
    )
