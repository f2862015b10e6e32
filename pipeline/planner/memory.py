"""Memory of a job on given hardware, before any of it is taken.

What a forward pass holds is counted on fake tensors (`activations.py`). The rest is arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pipeline.planner.activations import kept_bytes, on_meta, scoring_bytes
from pipeline.training.logprobs import TILE_ENTRIES
from pipeline.training.lora import TARGETS

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder.

    Attributes:
        parameters: all of them, tied ones once.
        matmul_parameters: those in matrix products, the output layer included.
        layers, width, heads, kv_heads, head_dim, vocabulary: as in its configuration.
    """

    parameters: int
    matmul_parameters: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def cache_bytes(self, element_bytes: int) -> int:
        """Returns the bytes of keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes

    def training_flops(self, context: int, *, recompute: bool) -> float:
        """Returns the floating-point operations of one trained token in rows of `context` tokens.

        6 for each parameter in a product and 6 * layers * heads * head_dim * context for causal attention;
        a third more where the forward pass runs twice.

        Source: Kaplan et al., arXiv:2001.08361, section 2.1, with the causal half of attention.
        """
        once = 6 * self.matmul_parameters + 6 * self.layers * self.heads * self.head_dim * context
        return once * (4 / 3 if recompute else 1)


def shape_of(config: Any) -> Shape:
    """Returns the sizes of the model that a transformers configuration describes; takes no memory."""
    model = on_meta(config)
    linear = [module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear)]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        matmul_parameters=sum(linear),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocabulary=config.vocab_size,
    )


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass of a decoder.

    Attributes:
        tokens: of the pass.
        row_tokens: of each row in it, at most `tokens`.
        half_weights: bf16 weights.
        half_products: bf16 products of fp32 weights, under autocast.
        on_gpu: with a GPU's attention kernels: none pads in half precision, the one for fp32 wants keys and
            values for every query head.
    """

    tokens: int
    row_tokens: int
    half_weights: bool = False
    half_products: bool = False
    on_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained.

    Attributes:
        backend: "torch", or "deepspeed" with the rest of these.
        zero_stage: ZeRO stage; 0 without.
        num_ranks: processes, one GPU each.
        half_weights: bf16 weights with an fp32 master copy (DeepSpeed's bf16), not fp32 weights.
        half_products: bf16 products under autocast.
        on_gpu: whether it runs there, with other attention kernels.
        offload: whether master copy and moments lie in host memory.
        micro_batch_tokens: of one forward pass.
        row_tokens: of one row in it.
        piece_tokens: tokens of a tile of logits.
        recompute: whether a layer's inside is computed again.
        buffer_bytes: for communication: buckets of gradients, weights gathered ahead of their use.
        trained: parameters that are trained; None is all.
    """

    backend: Literal["torch", "deepspeed"] = "torch"
    zero_stage: int = 0
    num_ranks: int = 1
    half_weights: bool = False
    half_products: bool = False
    on_gpu: bool = False
    offload: bool = False
    micro_batch_tokens: int = 16384
    row_tokens: int = 2048
    piece_tokens: int = 1024
    recompute: bool = False
    buffer_bytes: int = 0
    trained: int | None = None

    @property
    def forward(self) -> Forward:
        """One of its forward passes."""
        row_tokens = min(self.row_tokens, self.micro_batch_tokens)
        return Forward(
            self.micro_batch_tokens, row_tokens, self.half_weights, self.half_products, self.on_gpu
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase takes at its peak.

    Attributes:
        name: what runs.
        device: part -> bytes on each GPU (on a CPU: of each process).
        host: part -> bytes of host memory, all processes of the phase together.
    """

    name: str
    device: Mapping[str, int]
    host: Mapping[str, int]

    @property
    def device_bytes(self) -> int:
        """Bytes on each GPU."""
        return sum(self.device.values())


def training_phase(
    name: str, config: Any, how: Training, *, head: Literal["policy", "critic"] = "policy"
) -> Phase:
    """Returns what an update takes at its peak: the start of the backward pass, moments already there.

    Args:
        name: of the phase.
        config: transformers configuration of the model.
        how: backend, sharding, batch.
        head: a critic has no vocabulary to project on.
    """
    shape = shape_of(config)
    count = shape.parameters
    shards = how.num_ranks if how.zero_stage else 1
    weight_bytes = 2 if how.half_weights else 4
    parts = {"weights": weight_bytes * count // (shards if how.zero_stage == 3 else 1)}
    trained = count if how.trained is None else how.trained
    optimizer = 8 * trained // shards
    if how.backend == "deepspeed":  # keeps a master copy even of fp32 weights
        optimizer += 4 * count // shards
    parts["gradients"] = 4 * trained // (shards if how.zero_stage >= 2 else 1)
    host = {}
    if how.offload:
        host["master copy and moments"] = (optimizer + parts.pop("gradients")) * how.num_ranks
    else:
        parts["optimizer"] = optimizer
    if how.buffer_bytes:
        parts["communication"] = how.buffer_bytes
    per_layer, rest = kept_bytes(config, how.forward)
    element = 2 if how.half_weights or how.half_products else 4
    if how.recompute:
        parts["activations"] = (
            shape.layers * how.micro_batch_tokens * shape.width * element + per_layer + rest
        )
    else:
        parts["activations"] = shape.layers * per_layer + rest
    if head == "policy":
        entries = min(TILE_ENTRIES, shape.vocabulary)
        tile = min(how.piece_tokens, how.micro_batch_tokens) * entries
        parts["logits"] = (8 if element == 4 else 10) * tile  # their exponentials, and a half copy
        # In half products of fp32 weights: a half copy of the weight, its gradient, and that in fp32.
        bytes_each = 2 if how.half_weights else 8 if how.half_products else 4
        if how.trained is not None:  # the output layer is not
            bytes_each = 2 if how.half_products else 0
        parts["gradient of the output layer"] = (bytes_each * shape.vocabulary + 4 * entries) * shape.width
    return Phase(name, parts, host)


def adapter_parameters(config: Any, rank: int) -> int:
    """Returns how many parameters LoRA adapters of a rank have."""
    adapted = [m for name, m in on_meta(config).named_modules() if name.rpartition(".")[2] in TARGETS]
    return sum(rank * (layer.in_features + layer.out_features) for layer in adapted)


STANDING = ("weights", "gradients", "optimizer")
"""Parts of an update that stay on a GPU between two updates, unless they are moved away."""


def standing_bytes(update: Phase) -> int:
    """Returns what a trainer holds between two updates; at most, since DeepSpeed may drop its gradients."""
    return sum(size for name, size in update.device.items() if name in STANDING)


def scoring_phase(name: str, config: Any, how: Training) -> Phase:
    """Returns what a pass without gradient takes: whole weights, and one layer at work."""
    weights = (2 if how.half_weights else 4) * shape_of(config).parameters
    return Phase(name, {"weights": weights, "activations": scoring_bytes(config, how.forward)}, {})


@dataclass(frozen=True, slots=True)
class Generation:
    """How vLLM serves a policy.

    Attributes:
        tensor_parallel: GPUs of one replica.
        element_bytes: of weights and cache.
        cache_bytes: for keys and values of one replica's GPU.
        context_tokens: of one live rollout.
    """

    tensor_parallel: int
    element_bytes: int
    cache_bytes: int
    context_tokens: int


def generation_phase(name: str, shape: Shape, how: Generation) -> tuple[Phase, int]:
    """Returns what a replica takes on each of its GPUs, and how many rollouts it holds alive."""
    parts = {
        "weights": shape.parameters * how.element_bytes // how.tensor_parallel,
        "key-value cache": how.cache_bytes,
    }
    per_token = shape.cache_bytes(how.element_bytes) / how.tensor_parallel
    return Phase(name, parts, {}), int(how.cache_bytes // (per_token * how.context_tokens))
