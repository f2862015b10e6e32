"""LoRA through peft: few trained weights on top of frozen ones.

Whoever reads weights (an engine, an export) sees the merged model under its own names.
"""

from typing import Any

import torch

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Layers that get an adapter: every linear one of a decoder block."""
_MARK, _BASE = ".lora_", ".base_layer"


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


def merged_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns weights by Hugging Face name, adapters added to what they adapt; others are live tensors."""
    from peft.tuners.lora import LoraLayer

    parts: dict[str, Any] = {n: part for n, part in model.named_modules() if isinstance(part, LoraLayer)}
    with torch.no_grad():
        products = {f"{name}.weight": layer.get_delta_weight("default") for name, layer in parts.items()}
        return {
            (name := key.replace(_BASE, "")): tensor + products[name] if name in products else tensor
            for key, tensor in model.state_dict().items()
            if _MARK not in key
        }
