"""Memory of a job on given hardware, before any of it is taken.

What a forward pass holds is counted on fake tensors (`activations.py`). The rest is arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.planner.activations import Forward, kept_bytes, on_meta, scoring_bytes
from pipeline.training.logprobs import TILE_ENTRIES
from pipeline.training.lora import TARGETS

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder."""

    parameters: int  # tied ones once
    layers: int
    width: int
    vocabulary: int
    cache_entries: int  # numbers in the keys and values of one token


def shape_of(config: Any) -> Shape:
    """Returns the sizes of the model that a transformers configuration describes; takes no memory."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in on_meta(config).parameters()),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        vocabulary=config.vocab_size,
        cache_entries=2 * config.num_hidden_layers * config.num_key_value_heads * head_dim,
    )


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained."""

    forward: Forward  # of a micro-batch; half weights have an fp32 master copy (DeepSpeed's bf16)
    backend: Literal["torch", "deepspeed"] = "torch"
    zero_stage: int = 0
    num_ranks: int = 1  # one GPU each
    offload: bool = False  # master copy and moments lie in host memory
    piece_tokens: int = 1024  # of a tile of logits
    recompute: bool = False  # a layer's inside is computed again
    buffer_bytes: int = 0  # for communication: buckets of gradients, weights gathered ahead of their use
    trained: int | None = None  # parameters; None is all


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase takes at its peak: bytes by part."""

    device: Mapping[str, int]  # on each GPU; without GPUs, of the machine
    host: Mapping[str, int] = field(
        default_factory=dict
    )  # of host memory, all processes of the phase together

    @property
    def device_bytes(self) -> int:
        """On each GPU."""
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        """On the whole machine."""
        return sum(self.host.values())


def training_phase(config: Any, how: Training, head: Literal["policy", "critic"] = "policy") -> Phase:
    """Returns what an update takes at its peak: the start of the backward pass, moments already there."""
    shape, forward = shape_of(config), how.forward
    count = shape.parameters
    shards = how.num_ranks if how.zero_stage else 1
    weight_bytes = 2 if forward.half_weights else 4
    trained = count if how.trained is None else how.trained
    adapters = 0 if how.trained is None else how.trained
    parts = {"weights": weight_bytes * (count + adapters) // (shards if how.zero_stage == 3 else 1)}
    optimizer = 8 * trained // shards
    if how.backend == "deepspeed":  # keeps a master copy even of fp32 weights
        optimizer += 4 * trained // shards
    parts["gradients"] = 4 * trained // (shards if how.zero_stage >= 2 else 1)
    host = {}
    if how.offload:
        host["master copy and moments"] = (optimizer + parts.pop("gradients")) * how.num_ranks
    else:
        parts["optimizer"] = optimizer
    if how.buffer_bytes:
        parts["communication"] = how.buffer_bytes
    per_layer, rest = kept_bytes(config, forward)
    element = 2 if forward.half_weights or forward.half_products else 4
    inputs = shape.layers * forward.tokens * shape.width * element
    parts["activations"] = (inputs + per_layer if how.recompute else shape.layers * per_layer) + rest
    if head == "policy":  # a critic has no vocabulary to project on
        entries = min(TILE_ENTRIES, shape.vocabulary)
        tile = min(how.piece_tokens, forward.tokens) * entries
        parts["logits"] = (8 if element == 4 else 10) * tile  # their exponentials, and a half copy
        # In half products of fp32 weights: a half copy of the weight, its gradient, and that in fp32.
        bytes_each = 2 if forward.half_weights else 8 if forward.half_products else 4
        if how.trained is not None:  # the output layer is not
            bytes_each = 2 if forward.half_products else 0
        parts["gradient of the output layer"] = (bytes_each * shape.vocabulary + 4 * entries) * shape.width
    return Phase(parts, host)


def start_phase(config: Any, how: Training) -> Phase:
    """Returns what a DeepSpeed trainer takes at its peak while it starts.

    ZeRO 3 takes one whole weight at a time and divides it. ZeRO 2 copies all of them into one tensor.
    """
    element = 2 if how.forward.half_weights else 4
    parts = training_phase(config, how).device
    held = {name: parts[name] for name in ("weights", "optimizer") if name in parts}
    if how.zero_stage == 3:
        largest = max(parameter.numel() for parameter in on_meta(config).parameters())
        return Phase(held | {"a whole weight": element * largest})
    copied = element * (shape_of(config).parameters if how.trained is None else how.trained)
    copying = {
        "weights": parts["weights"],
        "their flat copy": copied,
    }  # which goes before the optimizer comes
    return Phase(max(held, copying, key=lambda held: sum(held.values())))


def step_phase(update: Phase) -> Phase:
    """Returns what AdamW's step takes on a GPU: gradients flat beside what they were, then square roots."""
    held = {
        part: update.device.get(part, 0) for part in ("weights", "gradients", "optimizer", "communication")
    }
    return Phase(held | {"flat gradients": held["gradients"]})


def adapter_parameters(config: Any, rank: int) -> int:
    """Returns how many parameters LoRA adapters of a rank have."""
    adapted = [m for name, m in on_meta(config).named_modules() if name.rpartition(".")[2] in TARGETS]
    return sum(rank * (layer.in_features + layer.out_features) for layer in adapted)


def standing_bytes(update: Phase) -> int:
    """Returns what a trainer holds between two updates; at most, since DeepSpeed may drop its gradients."""
    return sum(update.device.get(part, 0) for part in ("weights", "gradients", "optimizer"))


def scoring_phase(config: Any, how: Forward) -> Phase:
    """Returns what a pass without gradient takes: whole weights, and one layer at work."""
    weights = (2 if how.half_weights else 4) * shape_of(config).parameters
    return Phase({"weights": weights, "activations": scoring_bytes(config, how)})
