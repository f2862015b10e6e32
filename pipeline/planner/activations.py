"""Bytes that passes hold, counted and not modelled.

One and two layers of the real model run forward and backward on fake tensors, which have shapes and no
memory; the difference is a layer's.
"""

import json
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.ragged import ATTENTION_NAME, run_packed
from pipeline.training.attention import Packing
from pipeline.training.fusing import recompute_layers
from pipeline.training.logprobs import chosen_logprobs
from pipeline.training.lora import add_adapters


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass of a decoder."""

    tokens: int
    row_tokens: int  # of each row, at most `tokens`
    half_weights: bool = False  # bf16
    half_products: bool = False  # bf16 products of fp32 weights, under autocast
    # A GPU's attention kernels: none pads in half precision, fp32's wants keys and values for every head.
    on_gpu: bool = False
    lora_rank: int = 0  # of adapters, on frozen weights; 0 is none


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass with gradient, and the backward pass of an update."""

    forward: Forward
    recompute: bool = False  # a layer's inside is computed again
    piece_tokens: int = 1024  # of a tile of logits
    has_vocabulary: bool = True  # a critic has none to project on
    keeps_gradients: bool = False  # until it is over, as one of several at a time does


def pass_bytes(config: Any, how: Pass) -> tuple[int, int]:
    """Returns the bytes at the peak of a forward pass with gradient, and of that and its backward pass.

    Beside weights, optimizer and the gradients that add up: what is kept, and what comes and goes.
    """
    if how.keeps_gradients:  # what is kept becomes less while they become more, so layers are not alike
        peaks = _peaks_of(_as_json(config), config.num_hidden_layers, how)
    else:
        one, two = (_peaks_of(_as_json(config), layers, how) for layers in (1, 2))
        more = config.num_hidden_layers - 1
        peaks = {part: one[part] + more * (two[part] - one[part]) for part in one}
    return max(peaks["forward"], peaks["outputs"]), max(peaks.values())


def scoring_bytes(config: Any, how: Forward) -> int:
    """Returns the bytes that a pass without gradient holds at its peak, beside the weights."""
    return _scoring_peak(_as_json(config), how)


def on_meta(config: Any) -> Any:
    """Returns the causal language model of a configuration, without memory; equal ones share it."""
    return _on_meta(_as_json(config))


@cache
def _on_meta(config_json: str) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(_config_of(json.loads(config_json)))


def _as_json(config: Any) -> str:
    return json.dumps(config.to_dict(), sort_keys=True, default=str)


def _config_of(content: dict[str, Any]) -> Any:
    return AutoConfig.for_model(content.pop("model_type"), **content)


@cache
def _scoring_peak(config_json: str, how: Forward) -> int:
    with _faked(config_json, 2, how) as fake, torch.no_grad(), Counting(fake.model.parameters()) as counted:
        fake.hidden()
        return counted.peak


@cache
def _peaks_of(config_json: str, layers: int, how: Pass) -> dict[str, int]:
    """Returns the bytes at the peak of each part: forward, outputs and, backward, head, layers, embeddings.

    No embeddings if they are not trained.
    """
    peaks: dict[str, int] = {}
    with _faked(config_json, layers, how.forward) as fake, Counting(fake.model.parameters()) as counted:

        def ends(part: str) -> None:
            peaks[part] = counted.peak
            counted.peak = counted.held

        def embedded(_: object, __: object, states: torch.Tensor) -> None:
            states.register_hook(lambda _: ends("layers"))

        if how.recompute:
            recompute_layers(fake.model)
        for parameter in fake.model.parameters():
            if parameter.requires_grad and not how.keeps_gradients:  # a gradient is added up at once
                parameter.register_post_accumulate_grad_hook(lambda which: setattr(which, "grad", None))
        embeddings = fake.model.get_input_embeddings()
        if embeddings.weight.requires_grad:
            embeddings.register_forward_hook(embedded)
        # Of all tokens that are projected, one tile's: the tiles come one after another, many and all alike.
        tokens = fake.packing.positions.numel()
        few = min(how.piece_tokens, tokens)
        with fake.products:
            hidden = fake.hidden()
            ends("forward")
            hidden.register_hook(lambda _: ends("head"))
            outputs = fake.logprobs(hidden, few, how.piece_tokens) if how.has_vocabulary else hidden.float()
        total = outputs.sum()
        del hidden, outputs
        ends("outputs")
        total.backward()
        ends("embeddings" if "layers" in peaks else "layers")
    if how.has_vocabulary:
        half = how.forward.half_weights or how.forward.half_products
        others = (tokens - few) * fake.model.config.hidden_size  # states of the other tokens, their gradient
        peaks["outputs"] += (2 if half else 4) * others
        peaks["head"] += 8 * others  # fp32 sums of the gradient beside the states, and in half a copy of them
    return peaks


@dataclass(frozen=True)
class _Faked:
    """A decoder on fake tensors and the rows of a micro-batch."""

    model: Any
    packing: Packing
    products: AbstractContextManager[Any]  # the mode that they are made in

    def hidden(self) -> torch.Tensor:
        """Returns what the decoder makes of the rows, [N, width]."""
        return run_packed(self.model.base_model, torch.zeros_like(self.packing.positions), self.packing)

    def logprobs(self, hidden: torch.Tensor, number: int, piece_tokens: int) -> torch.Tensor:
        """Returns log-probabilities of so many tokens."""
        at = torch.zeros(number, dtype=torch.long)
        weight = self.model.get_output_embeddings().weight
        return chosen_logprobs(hidden.index_select(0, at), weight, at, piece_tokens=piece_tokens)


@contextmanager
def _faked(config_json: str, layers: int, how: Forward) -> Iterator[_Faked]:
    """Yields a decoder of a few layers; what is computed meanwhile is fake."""
    content = json.loads(config_json) | {"num_hidden_layers": layers}
    content["layer_types"] = (content.get("layer_types") or [])[:layers] or None
    fused = how.on_gpu and (how.half_weights or how.half_products)
    shorter = 0 if fused else 1  # rows of two lengths attend padded
    lengths = [how.row_tokens - shorter * (row % 2) for row in range(max(1, how.tokens // how.row_tokens))]
    lengths += [rest] if (rest := how.tokens - sum(lengths)) > 0 else []
    dtype = torch.bfloat16 if how.half_weights else torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_config_of(content), dtype=dtype)
        model.set_attn_implementation(ATTENTION_NAME)
        if how.lora_rank:
            add_adapters(model, how.lora_rank, how.lora_rank)
    with FakeTensorMode(allow_non_fake_inputs=True):
        _fake(model, dtype)
        packing = Packing(lengths, repeat_heads=how.on_gpu and not fused)
        yield _Faked(model, packing, torch.autocast("cpu", torch.bfloat16, enabled=how.half_products))


def _fake(model: Any, dtype: torch.dtype) -> None:
    """Gives a model on torch's device `meta` fake tensors of a CPU; made of those, peft could not move it."""
    for part in model.modules():
        for name, weight in part.named_parameters(recurse=False):
            fake = torch.empty_like(weight, device="cpu", dtype=dtype)  # adapters', too
            setattr(part, name, torch.nn.Parameter(fake, weight.requires_grad))
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty_like(buffer, device="cpu"))
    model.tie_weights()


class Counting(TorchDispatchMode):
    """Counts the bytes of tensors made while it is entered, `held` now and at their `peak`, but for views."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:  # made before
        super().__init__()
        self.held = self.peak = 0
        self._storages = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns what the operation returns; counts what is new in it."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._storages:
                    self._storages.add(storage._cdata)
                    self.held += storage.nbytes()
                    self.peak = max(self.peak, self.held)
                    weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        return result

    def _forget(self, address: int, size: int) -> None:
        self._storages.remove(address)
        self.held -= size
