"""What only plain torch promises: outputs are the model's own, AdamW's details, adapters."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from pipeline.training import TrainingRow
from pipeline.training.losses import sft_loss
from pipeline.training.torch import TorchTrainer
from tests.pipeline.training.helpers import (
    LOSS,
    SETTINGS,
    copied,
    moved,
    policy,
    policy_training_rows,
)


def policy_trainer(**changes: Any) -> TorchTrainer:
    return TorchTrainer(policy(), head="policy", **SETTINGS | changes)


def test_logprobs_equal_the_models_own_and_are_computed_only_where_they_are_wanted() -> None:
    rows = policy_training_rows(num=4)
    plain = copy.deepcopy(policy()).eval()  # with transformers' own attention
    everywhere = policy_trainer().forward([TrainingRow(row.token_ids) for row in rows])
    for row, some, all_ in zip(rows, policy_trainer().forward(rows), everywhere, strict=True):
        ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            log_p = plain(ids).logits.log_softmax(-1)[0, :-1]
        assert all_["logprobs"][0] == 0
        expected = log_p.gather(1, ids[0, 1:, None]).squeeze(1)
        np.testing.assert_allclose(all_["logprobs"][1:], expected, atol=1e-5)
        trained = row.columns["weight"] != 0
        np.testing.assert_allclose(some["logprobs"][trained], all_["logprobs"][trained], atol=1e-6)
        assert not some["logprobs"][~trained].any()


def test_weight_decay_spares_vectors_and_the_schedule_is_followed() -> None:
    trainer = policy_trainer(learning_rate=lambda n: 0.1 * (n + 1), weight_decay=0.5)
    rows = [TrainingRow(np.arange(4, dtype=np.int32), {"weight": np.zeros(4, np.float32)})]
    before = copied(trainer.weights())
    rates = [trainer.update(rows, sft_loss)["learning_rate"] for _ in range(2)]
    assert rates == [0.1, 0.2]
    after = trainer.weights()
    torch.testing.assert_close(after["model.norm.weight"], before["model.norm.weight"])
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(after[name], before[name] * (1 - 0.1 * 0.5) * (1 - 0.2 * 0.5))


def test_adapters_change_nothing_at_first_and_then_are_all_that_is_trained(tmp_path: Path) -> None:
    trainer, rows = policy_trainer(lora_rank=4, lora_alpha=8), policy_training_rows()
    before = copied(policy_trainer().weights())
    assert set(trainer.weights()) == set(before)
    assert not moved(trainer, before)
    base = {name: p.clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
    for _ in range(3):
        trainer.update(rows, LOSS)
    assert all(torch.equal(p, base[n]) for n, p in trainer.model.named_parameters() if n in base)
    assert moved(trainer, before) == {name for name in before if "_proj" in name}
    merged = trainer.weights()
    one = merged["model.layers.0.mlp.up_proj.weight"]
    assert one is not merged["model.layers.0.mlp.up_proj.weight"]  # nobody keeps what was added up
    trainer.save_checkpoint(tmp_path)
    assert all(".lora_" in name for name in load_file(tmp_path / "weights.safetensors"))
    trainer.export(tmp_path)
    again = TorchTrainer(Qwen3ForCausalLM.from_pretrained(tmp_path), head="policy")
    for ours, merged in zip(trainer.forward(rows), again.forward(rows), strict=True):
        np.testing.assert_allclose(ours["logprobs"], merged["logprobs"], atol=1e-5)


def test_two_passes_at_a_time_learn_what_one_learns_and_hold_no_more_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = policy_training_rows()
    trainers = []
    for threads, tokens in ((1, 16384), (2, 16384), (3, 100)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        trainers.append(policy_trainer(micro_batch_tokens=tokens))
    numbers = [[sum(batch.lengths) for batch in trainer._batches(rows)] for trainer in trainers]
    assert [len(tokens) for tokens in numbers[:2]] == [1, 2]
    assert max(numbers[2]) <= 50
    before = [trainer.forward(rows) for trainer in trainers]
    metrics = [trainer.update(rows, LOSS) for trainer in trainers]
    for trainer, logprobs, found in zip(trainers[1:], before[1:], metrics[1:], strict=True):
        for ours, alone in zip(logprobs, before[0], strict=True):
            np.testing.assert_allclose(ours["logprobs"], alone["logprobs"], atol=1e-5)
        assert found == pytest.approx(metrics[0], rel=1e-4, abs=1e-6)
        torch.testing.assert_close(dict(trainer.weights()), dict(trainers[0].weights()), rtol=1e-3, atol=1e-5)
