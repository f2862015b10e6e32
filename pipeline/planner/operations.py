"""Operations of a model's products, counted once each: what a share of a GPU's peak is measured by."""

from collections.abc import Sequence
from typing import Any

from pipeline.planner.memory import Shape, shape_of
from pipeline.training.protocol import TrainingRow


def forward_operations(config: Any, row: int) -> float:
    """Returns the operations of a token's forward pass without the output layer: products and attention.

    2 a weight, embeddings left out, and 2 x layers x width x T for a token that sees half of its row's T.
    """
    shape = _shape(config)
    tables = (1 if config.tie_word_embeddings else 2) * shape.vocabulary * shape.width
    width = config.num_attention_heads * config.head_dim
    return 2 * (shape.parameters - tables) + 2 * shape.layers * width * row


def head_operations(config: Any) -> float:
    """Returns the operations of a token's output layer."""
    shape = _shape(config)
    return 2 * shape.vocabulary * shape.width


def update_operations(
    config: Any, rows: Sequence[TrainingRow], *, adapters: bool = False, head: str = "policy"
) -> float:
    """Returns the operations of an update: the backward pass takes twice a forward pass, with adapters once.

    The output layer works where a policy is trained; what is computed again does not count.
    """
    total = 0.0
    for row in rows:
        total += len(row.token_ids) * forward_operations(config, len(row.token_ids))
        if head == "policy":
            total += int((row.columns["weight"] != 0).sum()) * head_operations(config)
    return (2 if adapters else 3) * total


_SHAPES: dict[int, tuple[Any, Shape]] = {}


def _shape(config: Any) -> Shape:
    """Returns the sizes of a model, counted once for each configuration."""
    if id(config) not in _SHAPES:
        _SHAPES[id(config)] = config, shape_of(config)  # kept, so that no other gets its id
    return _SHAPES[id(config)][1]
