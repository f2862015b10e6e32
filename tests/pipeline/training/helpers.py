"""Tiny models and rows for trainers."""

from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from pipeline.credit import LossOptions
from pipeline.training import TrainingRow
from pipeline.training.losses import policy_loss

VOCAB = 50
LOSS = policy_loss(LossOptions(kl=0.01))
SETTINGS: dict[str, Any] = {"learning_rate": lambda n: 1e-2 / (n + 1), "weight_decay": 0.1, "grad_clip": 0.5}


def config(**changes: int) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=24, vocab_size=VOCAB, max_position_embeddings=64, initializer_range=0.2,
        tie_word_embeddings=True, attn_implementation="sdpa", pad_token_id=0, **changes,
    )  # fmt: skip


def policy(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config())


def critic() -> Any:
    torch.manual_seed(1)
    return Qwen3ForSequenceClassification(config(num_labels=2))


def policy_training_rows(seed: int = 0, num: int = 7) -> list[TrainingRow]:
    """Returns rows of 4 to 40 tokens, so that ranks and micro-batches hold unequal numbers of tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(num):
        n = int(rng.integers(4, 41))
        weight = (rng.random(n) < 0.5).astype(np.float32)
        weight[:2] = [0, i == 0]  # row 0 trains its second token, predicted from the first alone
        numbers = {name: rng.normal(-2, 1, n).astype(np.float32) for name in ("old_logprobs", "ref_logprobs")}
        numbers |= {"engine_logprobs": numbers["old_logprobs"] + 0.1, "weight": weight / 60}
        numbers["advantages"] = rng.normal(size=n).astype(np.float32)
        rows.append(TrainingRow(rng.integers(0, VOCAB, n).astype(np.int32), numbers))
    return rows


def critic_training_rows() -> list[TrainingRow]:
    columns = {"weight": np.full(8, 0.1), "targets": np.random.default_rng(0).random(8)}
    return [TrainingRow(np.arange(8, dtype=np.int32), {k: v.astype(np.float32) for k, v in columns.items()})]


def copied(weights: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def moved(trainer: Any, before: dict[str, torch.Tensor]) -> set[str]:
    """Returns the names of weights that are not what they were."""
    return {name for name, tensor in trainer.weights().items() if not torch.equal(tensor, before[name])}
