"""How a decoder's layers run: computed again in the backward pass, or compiled by torch to few kernels."""

from typing import Any

import torch
from transformers import AttentionInterface

from pipeline.ragged import ATTENTION_NAME, packed_attention

LEAST_WIDTH = 1024
"""Of hidden states. Kernels take half a minute to make, and the stages of a smaller model take no longer."""


def is_wide(config: Any) -> bool:
    """Returns whether the layers of such a model are worth compiling."""
    return bool(config.hidden_size >= LEAST_WIDTH)


def pays(model: Any) -> bool:
    """Returns whether a model's layers are worth compiling where they are: on a GPU, if it is not tiny."""
    return next(model.parameters()).is_cuda and is_wide(model.config)


def fuse_layers(model: Any) -> None:
    """Lets torch compile each layer when it first runs, but for attention, whose rows always differ."""
    AttentionInterface.register(ATTENTION_NAME, torch.compiler.disable(packed_attention))
    for layer in model.base_model.layers:
        layer.compile(dynamic=True)


def recompute_layers(model: Any) -> None:
    """Lets a model keep only each layer's input, and compute its inside again in the backward pass."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    # transformers 5.20 renamed it, and warns of the old name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.train()  # transformers recomputes in training mode only
