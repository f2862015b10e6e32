"""Memory of a job on given hardware, before any of it is taken.

What passes hold is counted on fake tensors (`activations.py`). The rest is arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipeline.planner.activations import Forward, Pass, on_meta, pass_bytes, scoring_bytes
from pipeline.training.fusing import is_wide
from pipeline.training.lora import TARGETS

GIB = 2**30
Head = Literal["policy", "critic"]


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
    passes: int = 1  # at a time, which share a micro-batch's tokens (`SideBySide`)

    def trained(self, config: Any) -> int:
        """Returns how many parameters of a model are trained."""
        rank = self.forward.lora_rank
        return adapter_parameters(config, rank) if rank else shape_of(config).parameters

    def pass_of(self, head: Head) -> Pass:
        """Returns the forward and backward pass of a micro-batch, or of its share of one."""
        tokens = self.forward.tokens // self.passes
        forward = replace(self.forward, tokens=tokens, row_tokens=min(tokens, self.forward.row_tokens))
        return Pass(forward, self.recompute, self.piece_tokens, head == "policy", self.passes > 1)


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


def training_phase(config: Any, how: Training, head: Head = "policy") -> Phase:
    """Returns what an update takes at its peak before the optimizer's step, moments already there."""
    forward, count = how.forward, shape_of(config).parameters
    shards = how.num_ranks if how.zero_stage else 1
    weight_bytes = 2 if forward.half_weights else 4
    trained = how.trained(config)
    adapters = trained if forward.lora_rank else 0
    parts = {"weights": weight_bytes * (count + adapters) // (shards if how.zero_stage == 3 else 1)}
    optimizer = 8 * trained // shards
    if how.backend == "deepspeed":  # keeps a master copy even of fp32 weights
        optimizer += 4 * trained // shards
    # DeepSpeed adds gradients up in fp32. ZeRO 3 has those for the step beside them, with fp32 weights so has
    # ZeRO 2.
    sets = 2 if how.backend == "deepspeed" and (how.zero_stage == 3 or not forward.half_weights) else 1
    parts["gradients"] = sets * 4 * trained // (shards if how.zero_stage >= 2 else 1)
    host = {}
    if how.offload:
        host["master copy, moments, gradients"] = (optimizer + parts.pop("gradients")) * how.num_ranks
    else:
        parts["optimizer"] = optimizer
    if how.buffer_bytes:
        parts["communication"] = how.buffer_bytes
    parts["activations"] = how.passes * pass_bytes(config, how.pass_of(head))[1]
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
    copied = element * how.trained(config)
    copying = {
        "weights": parts["weights"],
        "their flat copy": copied,
    }  # which goes before the optimizer comes
    return Phase(max(held, copying, key=lambda held: sum(held.values())))


def step_phase(update: Phase, on_gpu: bool) -> Phase:
    """Returns what AdamW's step takes under DeepSpeed; square roots are divided in place on a GPU alone."""
    parts = {name: update.device[name] for name in ("weights", "gradients", "optimizer")}
    moment = parts["optimizer"] // 3  # beside another one and a master copy
    return Phase(parts | {"square roots": moment if on_gpu else 2 * moment})


def adapter_parameters(config: Any, rank: int) -> int:
    """Returns how many parameters LoRA adapters of a rank have."""
    adapted = [m for name, m in on_meta(config).named_modules() if name.rpartition(".")[2] in TARGETS]
    return sum(rank * (layer.in_features + layer.out_features) for layer in adapted)


def standing_bytes(update: Phase) -> int:
    """Returns what a trainer holds between two updates; at most, since all but ZeRO 3 drop gradients."""
    return sum(update.device.get(part, 0) for part in ("weights", "gradients", "optimizer"))


def scoring_phase(config: Any, how: Forward) -> Phase:
    """Returns what a pass without gradient takes: whole weights, and one layer at work."""
    weights = (2 if how.half_weights else 4) * shape_of(config).parameters
    return Phase({"weights": weights, "activations": scoring_bytes(config, how)})


def reference_phase(config: Any, how: Training) -> Phase:
    """Returns what a reference takes: layers that torch compiles score as if to train (`Network.scoring`)."""
    scoring = scoring_phase(config, how.forward)
    if not (how.forward.on_gpu and is_wide(config) and how.zero_stage != 3):
        return scoring
    return Phase({**scoring.device, "activations": pass_bytes(config, how.pass_of("policy"))[0]})
