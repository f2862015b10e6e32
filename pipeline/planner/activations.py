"""Bytes that a forward pass holds, counted and not modelled.

One and two layers of the real model run on fake tensors, which have shapes and no memory; the difference is a
layer's.
"""

import json
import weakref
from collections.abc import Iterable
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


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass of a decoder."""

    tokens: int
    row_tokens: int  # of each row, at most `tokens`
    half_weights: bool = False  # bf16
    half_products: bool = False  # bf16 products of fp32 weights, under autocast
    # A GPU's attention kernels: none pads in half precision, fp32's wants keys and values for every head.
    on_gpu: bool = False


def kept_bytes(config: Any, how: Forward) -> tuple[int, int]:
    """Returns the bytes that a pass keeps for its backward pass: for each layer, and besides."""
    one, two = (_held_by(_as_json(config), layers, how, True)[0] for layers in (1, 2))
    return two - one, 2 * one - two


def scoring_bytes(config: Any, how: Forward) -> int:
    """Returns the bytes that a pass without gradient holds at its peak, beside the weights."""
    return _held_by(_as_json(config), 2, how, False)[1]


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
def _held_by(config_json: str, layers: int, how: Forward, with_gradient: bool) -> tuple[int, int]:
    """Returns the bytes held after a forward pass, its result included, and at its peak."""
    content = json.loads(config_json) | {"num_hidden_layers": layers}
    content["layer_types"] = (content.get("layer_types") or [])[:layers] or None
    fused = how.on_gpu and (how.half_weights or how.half_products)
    shorter = 0 if fused else 1  # rows of two lengths attend padded
    lengths = [how.row_tokens - shorter * (row % 2) for row in range(max(1, how.tokens // how.row_tokens))]
    with FakeTensorMode(allow_non_fake_inputs=True):
        dtype = torch.bfloat16 if how.half_weights else torch.float32
        model = AutoModelForCausalLM.from_config(_config_of(content), dtype=dtype)
        model.set_attn_implementation(ATTENTION_NAME)
        token_ids = torch.zeros(sum(lengths), dtype=torch.long)
        packing = Packing(lengths, repeat_heads=how.on_gpu and not fused)
        half = torch.autocast("cpu", torch.bfloat16, enabled=how.half_products)
        with torch.set_grad_enabled(with_gradient), half, Counting(model.parameters()) as counted:
            hidden = run_packed(model.base_model, token_ids, packing)
            held = counted.held
            del hidden
    return held, counted.peak


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
