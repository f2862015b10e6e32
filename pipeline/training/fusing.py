"""A decoder's layers compiled by torch: what lies between their products becomes few kernels."""

from typing import Any

import torch
from transformers import AttentionInterface

from pipeline.ragged import ATTENTION_NAME, packed_attention

LEAST_WIDTH = 1024
"""Of hidden states. Kernels take half a minute to make, and the stages of a smaller model take no longer."""


def pays(model: Any) -> bool:
    """Returns whether a model's layers are worth compiling: on a GPU, if it is not tiny."""
    return next(model.parameters()).is_cuda and model.config.hidden_size >= LEAST_WIDTH


def fuse_layers(model: Any) -> None:
    """Lets torch compile each layer when it first runs, but for attention, whose rows always differ."""
    AttentionInterface.register(ATTENTION_NAME, torch.compiler.disable(packed_attention))
    for layer in model.base_model.layers:
        layer.compile(dynamic=True)
