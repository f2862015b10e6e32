"""DeepSpeed on two gloo ranks does what one process does: losses, gradients, weights, resumption.

Ranks take long to start, so a few groups serve the whole module; each test loads their first checkpoint.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from pipeline.errors import DivergenceError
from pipeline.training.deepspeed import DeepSpeedTrainer
from pipeline.training.deepspeed_config import read_deepspeed_config
from pipeline.training.losses import critic_loss
from pipeline.training.rank_group import DeepSpeedOptions
from pipeline.training.torch import TorchTrainer
from tests.pipeline.training.helpers import (
    LOSS,
    copied,
    critic,
    critic_training_rows,
    policy,
    policy_training_rows,
)

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[3] / "configs" / "deepspeed"
SETTINGS: dict[str, Any] = {
    "learning_rate": lambda n: 1e-2 / (n + 1),
    "weight_decay": 0.1,
    "micro_batch_tokens": 60,  # several micro-batches a rank
    "grad_clip": 0.5,
}
ZERO: dict[str, dict[str, Any]] = {
    "1": {"zero_optimization": {"stage": 1}},
    "3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
} | {
    name: read_deepspeed_config(CONFIGS / f"{name}.json")
    for name in ("zero2", "zero2_fp32", "zero3_cpu_adam")
}
Groups = Callable[..., DeepSpeedTrainer]


def options_of(zero: str, ranks: int = 2) -> DeepSpeedOptions:
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    return DeepSpeedOptions(num_ranks=ranks, config=ZERO[zero], threads=1, timeout=300)


def alone() -> TorchTrainer:
    return TorchTrainer(policy(), head="policy", **SETTINGS)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    """Gives the trainer of some ranks as it started; ports that a launcher left behind are taken."""
    made: dict[tuple[str, int], tuple[DeepSpeedTrainer, Path]] = {}

    def group(zero: str, ranks: int = 2) -> DeepSpeedTrainer:
        if (zero, ranks) not in made:
            network = {"recompute": True} if zero == "3" else {}
            options = options_of(zero, ranks)
            trainer = DeepSpeedTrainer(policy(), head="policy", options=options, **SETTINGS, **network)
            folder = tmp_path_factory.mktemp(f"zero-{zero}-{ranks}")
            made[zero, ranks] = (trainer, folder)
            trainer.save_checkpoint(folder)
        trainer, folder = made[zero, ranks]
        trainer.load_checkpoint(folder)
        return trainer

    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as taken:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        yield group
    for trainer, _ in made.values():
        trainer.close()


def moments_of(trainer: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Returns every moment of a trainer: after one update the first is a tenth of the gradient."""
    trainer.save_checkpoint(folder)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {k: t for k, t in load_file(file).items() if k.startswith("exp_avg")}
    return tensors


def assert_has_weights_of(trainer: DeepSpeedTrainer, other: TorchTrainer, tolerance: float = 1e-4) -> None:
    weights = trainer.weights()
    for name, parameter in other.model.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("zero", ["1", "zero2_fp32", "3"])
def test_losses_gradients_and_weights_are_those_of_one_process(
    zero: str, groups: Groups, tmp_path: Path
) -> None:
    ranks, expected = groups(zero), alone()
    for update in range(5):
        rows = policy_training_rows(update)
        assert ranks.update(rows, LOSS) == pytest.approx(expected.update(rows, LOSS), rel=1e-4, abs=1e-6)
        mine, theirs = moments_of(ranks, tmp_path / "ranks"), moments_of(expected, tmp_path / "alone")
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            scale = float(tensor.abs().max())
            torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-4 * scale)
    assert_has_weights_of(ranks, expected)
    rows = policy_training_rows(9)
    for mine, theirs in zip(ranks.forward(rows), expected.forward(rows), strict=True):
        np.testing.assert_allclose(mine["logprobs"], theirs["logprobs"], atol=1e-4)
    assert ranks.forward([]) == []


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        (("1", 2), ("3", 2)),
        (("zero2_fp32", 2), ("zero2_fp32", 1)),
        (("3", 2), ("3", 1)),
        (("3", 1), ("1", 2)),
    ],
)
def test_a_checkpoint_goes_on_under_another_stage_of_zero_and_on_another_number_of_ranks(
    saved: tuple[str, int], resumed: tuple[str, int], groups: Groups, tmp_path: Path
) -> None:
    whole, other = groups(*saved), groups(*resumed)
    for update in range(2):
        whole.update(policy_training_rows(update), LOSS)
    whole.save_checkpoint(tmp_path)
    other.load_checkpoint(tmp_path)
    for update in range(2, 4):
        rows = policy_training_rows(update)
        assert other.update(rows, LOSS) == pytest.approx(whole.update(rows, LOSS), rel=1e-4, abs=1e-6)
    expected = copied(whole.weights())
    for name, tensor in other.weights().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zero", ["zero2_fp32", "3"])
def test_a_loss_or_gradient_that_is_not_finite_changes_no_weight(zero: str, groups: Groups) -> None:
    trainer, fresh = groups(zero), alone()
    before = copied(trainer.weights())
    rows = policy_training_rows(0)
    rows[0].columns["advantages"][:] = np.nan
    with pytest.raises(DivergenceError):
        trainer.update(rows, LOSS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.weights().items())
    for each in (trainer, fresh):
        each.update(policy_training_rows(1), LOSS)  # and nothing of the bad gradient is left
    assert_has_weights_of(trainer, fresh)


@pytest.mark.parametrize("zero", ["zero2_fp32", "3", "zero3_cpu_adam"])
def test_offloading_between_updates_changes_nothing(zero: str, groups: Groups, tmp_path: Path) -> None:
    seen = []
    for times in (0, 2):  # leaving twice is leaving once
        trainer = groups(zero)
        metrics = []
        for update in range(2):
            for _ in range(times):
                trainer.offload()
            metrics.append(trainer.update(policy_training_rows(update), LOSS))
        for _ in range(times):
            trainer.offload()
        tensors = copied(trainer.weights())
        for _ in range(times):
            trainer.offload()
        seen.append((metrics, tensors | moments_of(trainer, tmp_path / str(times))))
    (metrics, tensors), (other_metrics, others) = seen
    assert other_metrics == metrics
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("zero", ["zero2", "zero2_fp32", "zero3_cpu_adam"])
def test_the_shipped_configurations_train_and_hand_over_a_model(
    zero: str, groups: Groups, tmp_path: Path
) -> None:
    """In bf16 the first update is that of bf16 weights, roughly; what is exported is what was trained."""
    trainer, expected = groups(zero), alone()
    rough = 1e-5 if "fp32" in zero else 0.05
    rows = policy_training_rows(0)
    got, wanted = trainer.update(rows, LOSS), expected.update(rows, LOSS)
    assert got["loss"] == pytest.approx(wanted["loss"], rel=rough, abs=rough)
    assert got["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=rough)
    trainer.offload()
    trainer.export(tmp_path)
    weights = trainer.weights()
    for key, parameter in Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).named_parameters():
        assert torch.equal(parameter, weights[key])


def test_a_critic_trains_its_head_first_and_then_everything() -> None:
    rows, settings = critic_training_rows(), SETTINGS | {"learning_rate": lambda n: 1e-2}
    options, expected = options_of("zero2_fp32"), TorchTrainer(critic(), head="critic", **settings)
    with closing(DeepSpeedTrainer(critic(), head="critic", options=options, **settings)) as ranks:
        for phase in (["score"], ["score"], None, None):
            for trainer in (ranks, expected):
                trainer.set_trainable(phase)
                trainer.update(rows, critic_loss())
            assert_has_weights_of(ranks, expected, 1e-3)


def test_ranks_that_only_score_need_no_deepspeed_leave_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def init_distributed(**_): raise RuntimeError('only ranks that train meet')"
    (tmp_path / "deepspeed.py").write_text(code)  # found before the real one
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    rows, expected = policy_training_rows(0), TorchTrainer(policy(), head="policy")
    with closing(DeepSpeedTrainer(policy(), head="policy", options=options_of("zero2_fp32"))) as scorer:
        for _ in range(2):
            for mine, theirs in zip(scorer.forward(rows), expected.forward(rows), strict=True):
                np.testing.assert_allclose(mine["logprobs"], theirs["logprobs"], atol=1e-5)
            scorer.offload()
