"""Trainers as `make_trainer` makes them from settings."""

import copy

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from pipeline.training import TrainingRow
from pipeline.training.torch import TorchTrainer
from stages.settings import Config
from stages.wiring.build import make_trainer


def test_a_critic_that_only_scores_computes_in_fp32() -> None:
    """It is calibrated next, on the scores that the frozen critic will give."""
    torch.manual_seed(0)
    critic = Qwen3ForSequenceClassification(
        Qwen3Config(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
            intermediate_size=24, vocab_size=50, max_position_embeddings=64, initializer_range=0.2,
            tie_word_embeddings=True, pad_token_id=0, num_labels=2,
        )
    )  # fmt: skip
    rows = [TrainingRow(np.arange(20, dtype=np.int32))]
    [expected] = TorchTrainer(copy.deepcopy(critic), head="critic").forward(rows)
    config = Config.model_validate({"training": {"backend": "torch", "dtype": "bfloat16"}})
    [scores] = make_trainer(config, copy.deepcopy(critic), head="critic").forward(rows)
    np.testing.assert_array_equal(scores["scores"], expected["scores"])
    learning = make_trainer(config, copy.deepcopy(critic), head="critic", learning_rate=lambda done: 0.0)
    assert not np.array_equal(learning.forward(rows)[0]["scores"], expected["scores"])
