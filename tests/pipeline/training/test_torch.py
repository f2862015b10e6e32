"""Training with plain torch: what an update computes, checkpoints, adapters."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from pipeline.errors import ArtifactError, DivergenceError, ExitCode
from pipeline.training import TrainingRow
from pipeline.training.losses import critic_loss, sft_loss
from pipeline.training.torch import TorchTrainer
from tests.pipeline.training.helpers import (
    LOSS,
    copied,
    critic,
    critic_training_rows,
    policy,
    policy_training_rows,
)


def policy_trainer(seed: int = 0, **settings: Any) -> TorchTrainer:
    options = {"learning_rate": lambda n: 1e-2 / (n + 1), "weight_decay": 0.1} | settings
    return TorchTrainer(policy(seed), head="policy", **options)


def critic_trainer(**settings: Any) -> TorchTrainer:
    options = {"learning_rate": lambda n: 1e-2} | settings
    return TorchTrainer(critic(), head="critic", **options)


def first_update(rows: list[TrainingRow], **settings: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Returns a first update's loss and its gradient, of which the first moment is a tenth."""
    trainer = policy_trainer(grad_clip=float("inf"), **settings)
    loss = trainer.update(rows, LOSS)["loss"]
    return loss, {name: 10 * trainer._optimizer.state[p]["exp_avg"] for name, p in trainer._named.items()}


def test_loss_and_gradient_ignore_micro_batches_and_order() -> None:
    rows = policy_training_rows()
    whole_loss, whole = first_update(rows)
    for given, settings in (
        (rows, {"micro_batch_tokens": 1}),
        (rows, {"micro_batch_tokens": 25}),
        (rows[::-1], {}),
        (rows, {"piece_tokens": 3, "recompute": True}),
    ):
        loss, split = first_update(given, **settings)
        assert loss == pytest.approx(whole_loss, rel=1e-5)
        for name, gradient in whole.items():
            torch.testing.assert_close(split[name], gradient, rtol=1e-4, atol=1e-6)


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


def test_no_value_depends_on_a_later_token_or_on_another_row() -> None:
    trainer = critic_trainer()
    row, longer = policy_training_rows(num=2)
    alone = trainer.forward([row])[0]["scores"]
    assert alone.shape == (len(row.token_ids), 2)
    together = trainer.forward([longer, row])[1]["scores"]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    prefix = TrainingRow(row.token_ids[:3])
    np.testing.assert_allclose(trainer.forward([prefix])[0]["scores"], alone[:3], atol=1e-5)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_resumed_training_is_the_same_bit_for_bit(lora_rank: int, tmp_path: Path) -> None:
    whole, stopped = policy_trainer(lora_rank=lora_rank), policy_trainer(lora_rank=lora_rank)
    updates = [policy_training_rows(seed=seed) for seed in range(4)]
    expected = [whole.update(rows, LOSS) for rows in updates]
    for rows in updates[:2]:
        stopped.update(rows, LOSS)
    stopped.save_checkpoint(tmp_path / "checkpoint")
    resumed = policy_trainer(seed=9 if lora_rank == 0 else 0, lora_rank=lora_rank)
    resumed.load_checkpoint(tmp_path / "checkpoint")
    assert [resumed.update(rows, LOSS) for rows in updates[2:]] == expected[2:]
    whole.save_checkpoint(tmp_path / "whole")
    resumed.save_checkpoint(tmp_path / "resumed")
    for name in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    names = load_file(tmp_path / "whole" / "weights.safetensors")
    assert all(".lora_" in name for name in names) == (lora_rank > 0)  # a checkpoint of adapters has no more
    resumed.export(tmp_path / "model")
    exported = Qwen3ForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(exported[name], tensor) for name, tensor in whole.weights().items())


def test_head_only_phase_moves_nothing_else_and_is_remembered(tmp_path: Path) -> None:
    rows = critic_training_rows()
    trainer, loss = critic_trainer(), critic_loss()
    before = copied(trainer.weights())
    trainer.set_trainable(["score"])
    trainer.update(rows, loss)
    moved = {name for name, tensor in trainer.weights().items() if not torch.equal(tensor, before[name])}
    assert moved == {"score.weight"}
    trainer.save_checkpoint(tmp_path)
    resumed = critic_trainer()
    resumed.load_checkpoint(tmp_path)
    assert resumed.update(rows, loss) == trainer.update(rows, loss)
    assert torch.equal(resumed.weights()["model.norm.weight"], before["model.norm.weight"])
    trainer.set_trainable(None)
    trainer.update(rows, loss)
    assert not torch.equal(trainer.weights()["model.norm.weight"], before["model.norm.weight"])
    with pytest.raises(ValueError, match="no weight starts with"):
        trainer.set_trainable(["scores."])


def test_a_damaged_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    trainer = policy_trainer()
    trainer.update(policy_training_rows(), LOSS)
    other = policy_trainer(seed=3)
    before = copied(other.weights())
    for name in ("weights.safetensors", "optimizer.safetensors"):
        trainer.save_checkpoint(tmp_path)
        damaged = bytearray((tmp_path / name).read_bytes())
        damaged[-1] ^= 1
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ArtifactError, match=name):
            other.load_checkpoint(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps({"num_updates": 1}))
    with pytest.raises(ArtifactError, match="not a whole checkpoint"):
        other.load_checkpoint(tmp_path)
    trainer.save_checkpoint(tmp_path)
    with pytest.raises(ArtifactError, match="another model"):
        critic_trainer().load_checkpoint(tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.weights().items())


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    trainer = policy_trainer()
    rows = policy_training_rows()
    rows[0].columns["advantages"][1] = np.nan
    before = copied(trainer.weights())
    with pytest.raises(DivergenceError, match=r"update 0.*lower learning_rate") as raised:
        trainer.update(rows, LOSS)
    assert raised.value.code == ExitCode.QUALITY
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.weights().items())
    assert trainer.num_updates == 0


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


def test_a_trainer_without_a_learning_rate_only_scores() -> None:
    trainer = policy_trainer(learning_rate=None)
    assert len(trainer.forward(policy_training_rows(num=2))) == 2
    assert trainer.forward([]) == []
    with pytest.raises(ValueError, match="learning rate"):
        trainer.update(policy_training_rows(), LOSS)


def test_adapters_change_nothing_at_first_and_then_are_all_that_is_trained(tmp_path: Path) -> None:
    trainer, rows = policy_trainer(lora_rank=4, lora_alpha=8), policy_training_rows()
    before = copied(policy_trainer().weights())
    assert set(trainer.weights()) == set(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.weights().items())
    base = {name: p.clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
    for _ in range(3):
        trainer.update(rows, LOSS)
    assert all(torch.equal(p, base[n]) for n, p in trainer.model.named_parameters() if n in base)
    changed = {name for name, tensor in trainer.weights().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if "_proj" in name}
    trainer.export(tmp_path)
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    again = TorchTrainer(loaded, head="policy")
    for ours, merged in zip(trainer.forward(rows), again.forward(rows), strict=True):
        np.testing.assert_allclose(ours["logprobs"], merged["logprobs"], atol=1e-5)


def test_a_critic_with_adapters_trains_its_whole_head() -> None:
    rows, trainer = critic_training_rows(), critic_trainer(lora_rank=2)
    before = copied(trainer.weights())
    trainer.set_trainable(["score"])
    trainer.update(rows, critic_loss())
    trainer.set_trainable(None)
    for _ in range(2):  # the first moves one half of an adapter, the other half follows
        trainer.update(rows, critic_loss())
    moved = {name for name, tensor in trainer.weights().items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if "_proj" in name or name == "score.weight"}
