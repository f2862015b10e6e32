"""LoRA through peft: few trained weights on top of frozen ones.

Whoever reads weights (an engine, an export) sees the merged model under its own names.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Layers that get an adapter: every linear one of a decoder block."""
_MARK = ".lora_"
BASE = ".base_layer"
"""In the name of a weight that an adapter is on."""


def add_adapters(model: torch.nn.Module, rank: int, alpha: int) -> None:
    """Freezes a model but its critic's head and puts adapters into it, which change nothing at first.

    Always the same ones: they are drawn with a generator of their own, so training stays reproducible.
    An adapter's product, of inner width `rank`, is scaled by alpha / rank.

    Source: Hu et al., arXiv:2106.09685.
    """
    from peft import LoraConfig, inject_adapter_in_model

    with torch.random.fork_rng():
        torch.manual_seed(0)
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(TARGETS)), model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_MARK in name or name.startswith("score."))


def base_name(name: str) -> str:
    """Returns the Hugging Face name of a weight that an adapter may be on."""
    return name.replace(BASE, "")


@contextmanager
def without_adapters(model: torch.nn.Module) -> Iterator[None]:
    """Lets a model compute as it did before it got adapters, if it has any."""
    layers: list[Any] = [part for part in model.modules() if hasattr(part, "lora_A")]
    for layer in layers:
        layer._disable_adapters = True  # its own method would freeze the adapters too
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def merged_run(
    run: torch.Tensor, start: int, width: int, down: torch.Tensor, up: torch.Tensor, scale: float
) -> torch.Tensor:
    """Returns fp32 elements `start` on of a flattened weight with its adapter's product, scale up @ down.

    To the bit the same however the weight is cut, on any device: weights that are the same have one digest.

    Args:
        run: [N], those elements of the base, of rows of `width`.
        start: place of the first.
        width: of the weight's rows.
        down: [rank, width], `lora_A`.
        up: [rows, rank], `lora_B`.
        scale: of the product.

    >>> base, ones = torch.zeros(6), torch.ones(1, 3)
    >>> merged_run(base[2:5], 2, 3, ones, torch.tensor([[1.0], [2.0]]), 2.0)
    tensor([2., 4., 4.])
    """
    first, last = start // width, -(-(start + run.numel()) // width)
    product = torch.zeros(last - first, width, device=run.device)
    for column, row in zip(up[first:last].T, down, strict=True):  # a matrix product rounds by its shape
        product += torch.outer(column, row)
    return run.float() + scale * product.flatten()[start - first * width :][: run.numel()]


def merged_weights(model: torch.nn.Module, sums_on: str | None = None) -> Mapping[str, torch.Tensor]:
    """Returns weights by Hugging Face name, adapters added to what they adapt; others are live tensors.

    Each is added up when it is asked for, and again the next time: all of them at once are a second model,
    which a GPU may have no room for. `sums_on` is the device that they go to; None is where they are made.
    """
    from peft.tuners.lora import LoraLayer

    adapted = {f"{n}.weight": part for n, part in model.named_modules() if isinstance(part, LoraLayer)}
    weights = {k.replace(BASE, ""): weight for k, weight in model.state_dict().items() if _MARK not in k}
    return _Merged(weights, adapted, sums_on)


class _Merged(Mapping[str, torch.Tensor]):
    def __init__(
        self, weights: Mapping[str, torch.Tensor], adapted: Mapping[str, Any], sums_on: str | None
    ) -> None:
        self._weights, self._adapted, self._sums_on = weights, adapted, sums_on

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self._weights[name]
        if name not in self._adapted:
            return weight
        layer = self._adapted[name]
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        with torch.no_grad():
            run = merged_run(weight.flatten(), 0, weight.shape[1], down, up, layer.scaling["default"])
            return run.view(weight.shape).to(self._sums_on or weight.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
