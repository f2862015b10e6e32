"""What every trainer promises, asked of each one: it does what torch does in one process and one batch.

DeepSpeed has two gloo ranks.
"""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import Qwen3ForCausalLM

from pipeline.errors import ArtifactError, DivergenceError, ExitCode
from pipeline.models.policy import weights_digest
from pipeline.training.deepspeed import DeepSpeedTrainer
from pipeline.training.losses import critic_loss
from pipeline.training.torch import TorchTrainer
from tests.pipeline.training.conftest import TORCH, Make, options_of
from tests.pipeline.training.helpers import (
    LOSS,
    SETTINGS,
    copied,
    critic,
    critic_training_rows,
    moved,
    policy,
    policy_training_rows,
)


def parameters_of(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    return copied(dict(trainer.model.named_parameters()))


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def trainer_of(kind: str, model: Any, head: str, **settings: Any) -> Any:
    if kind in TORCH:
        return TorchTrainer(model, head=head, **settings | TORCH[kind])  # type: ignore[arg-type]
    zero = kind.removesuffix(" lora")
    adapters = TORCH["lora"] if zero != kind else {}
    return DeepSpeedTrainer(model, head=head, options=options_of(zero), **settings | adapters)


def moments_of(trainer: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Returns every moment of a trainer, flat: after one update the first is a tenth of the gradient."""
    trainer.save_checkpoint(folder)
    parts: dict[str, dict[int, torch.Tensor]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            starts = tensors.metadata() or {}
            for name in tensors.keys():  # noqa: SIM118 - not a dictionary
                if name.startswith("exp_avg"):
                    part = tensors.get_tensor(name).flatten()
                    parts.setdefault(name, {})[int(starts.get(name, 0))] = part
    return {name: torch.cat([found[start] for start in sorted(found)]) for name, found in parts.items()}


def assert_close(mine: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    for name, tensor in theirs.items():
        scale = float(tensor.abs().max())
        torch.testing.assert_close(mine[name], tensor, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("kind", ["torch in pieces", slow("zero2_fp32"), slow("zero3")])
def test_losses_gradients_weights_and_outputs_are_those_of_one_process(
    kind: str, make: Make, tmp_path: Path
) -> None:
    trainer, expected = make(kind), make("torch")
    for update in range(5):
        rows = policy_training_rows(update)
        metrics = trainer.update(rows[::-1], LOSS)
        assert metrics == pytest.approx(expected.update(rows, LOSS), rel=1e-4, abs=1e-6)
        theirs = moments_of(expected, tmp_path / "one process")
        mine = moments_of(trainer, tmp_path / "kind")
        assert mine.keys() == theirs.keys()
        assert_close(mine, theirs)
    assert_close(trainer.weights(), parameters_of(expected))
    for mine, theirs in zip(trainer.forward(rows), expected.forward(rows), strict=True):
        np.testing.assert_allclose(mine["logprobs"], theirs["logprobs"], atol=1e-4)
    assert trainer.forward([]) == []


@pytest.mark.parametrize("kind", ["lora", slow("zero2_fp32 lora"), slow("zero3 lora")])
def test_adapters_learn_as_in_one_process_and_without_them_the_model_is_as_it_was(
    kind: str, make: Make, tmp_path: Path
) -> None:
    trainer, expected, start = make(kind), make("lora"), make("torch")
    for update in range(3):
        rows = policy_training_rows(update)
        assert trainer.update(rows, LOSS) == pytest.approx(expected.update(rows, LOSS), rel=1e-4, abs=1e-6)
        trainer.offload()
    theirs = moments_of(expected, tmp_path / "one process")
    mine = moments_of(trainer, tmp_path / "kind")
    assert mine.keys() == theirs.keys()
    assert all(".lora_" in name for name in mine)
    assert_close(mine, theirs)
    merged = copied(expected.weights())
    trainer.offload()
    assert_close(trainer.weights(), merged)
    assert trainer.weights().keys() == merged.keys()
    assert len(moved(start, merged)) == 14  # linear layers of two blocks
    rows = policy_training_rows(9)
    for scorer, adapted in ((expected, True), (start, False), (expected, True)):
        for ours, wanted in zip(trainer.forward(rows, adapted), scorer.forward(rows), strict=True):
            np.testing.assert_allclose(ours["logprobs"], wanted["logprobs"], atol=1e-4)
    trainer.update(rows, LOSS)
    assert moved(trainer, merged)
    trainer.load_checkpoint(tmp_path / "kind")
    assert_close(trainer.weights(), merged)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero2_fp32", "zero3"])
def test_ranks_map_the_files_of_a_policy_that_nobody_else_reads(zero: str, tmp_path: Path) -> None:
    start = policy()
    start.save_pretrained(tmp_path)
    files = {name: (tmp_path / "model.safetensors", name) for name, _ in start.named_parameters()}
    rows, settings = policy_training_rows(0), SETTINGS | {"options": options_of(zero), "files": files}
    expected = TorchTrainer(start, head="policy", **SETTINGS)
    with closing(DeepSpeedTrainer(policy(seed=5), head="policy", **settings)) as trainer:
        assert trainer.update(rows, LOSS) == pytest.approx(expected.update(rows, LOSS), rel=1e-4, abs=1e-6)
        assert_close(trainer.weights(), parameters_of(expected))


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        (("torch",), ("torch",)),
        (("lora",), ("lora",)),
        slow(("zero2_fp32", 2), ("zero2_fp32", 1)),
        slow(("zero2_fp32", 1), ("zero3", 2)),
        slow(("zero3", 2), ("zero2_fp32", 2)),
        slow(("zero2_fp32 lora", 2), ("zero3 lora", 1)),
    ],
)
def test_training_goes_on_from_a_checkpoint_bit_for_bit_or_on_other_ranks(
    saved: tuple[Any, ...], resumed: tuple[Any, ...], make: Make, tmp_path: Path
) -> None:
    whole, other = make(*saved), make(*resumed)
    tolerance = 0.0 if saved[0] in TORCH else 1e-4
    other.update(policy_training_rows(9), LOSS)  # what it had learnt is forgotten
    for update in range(2):
        whole.update(policy_training_rows(update), LOSS)
    whole.save_checkpoint(tmp_path)
    other.load_checkpoint(tmp_path)
    assert weights_digest(other.weights()) == weights_digest(whole.weights())  # whatever the ranks
    for update in range(2, 4):
        rows = policy_training_rows(update)
        expected = whole.update(rows, LOSS)
        assert other.update(rows, LOSS) == pytest.approx(expected, rel=tolerance, abs=tolerance / 100)
    assert_close(other.weights(), copied(whole.weights()), tolerance)


@pytest.mark.parametrize("kind", ["torch", slow("zero2_fp32"), slow("zero3")])
def test_a_loss_or_gradient_that_is_not_finite_changes_no_weight(kind: str, make: Make) -> None:
    trainer, fresh = make(kind), make("torch")
    before = copied(trainer.weights())
    rows = policy_training_rows(0)
    rows[0].columns["advantages"][:] = np.nan
    with pytest.raises(DivergenceError, match=r"update 0.*lower learning_rate") as raised:
        trainer.update(rows, LOSS)
    assert raised.value.code == ExitCode.QUALITY
    assert trainer.num_updates == 0
    assert not moved(trainer, before)
    for each in (trainer, fresh):
        each.update(policy_training_rows(1), LOSS)  # and nothing of the bad gradient is left
    assert_close(trainer.weights(), parameters_of(fresh))


@pytest.mark.parametrize("kind", ["torch", slow("zero2_fp32"), slow("zero3"), slow("zero3_cpu_adam")])
def test_offloading_between_updates_changes_nothing(kind: str, make: Make, tmp_path: Path) -> None:
    seen = []
    for times in (0, 2):  # leaving twice is leaving once
        trainer = make(kind)
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


@pytest.mark.parametrize("kind", ["torch", "lora", slow("zero2"), slow("zero2_fp32"), slow("zero3_cpu_adam")])
def test_what_is_exported_is_what_was_trained(kind: str, make: Make, tmp_path: Path) -> None:
    """In bf16, of two shipped configurations, the first update is that of bf16 weights, roughly."""
    trainer, rows = make(kind), policy_training_rows(0)
    rough = 0.05 if kind in ("zero2", "zero3_cpu_adam") else 1e-5
    wanted = make("torch").update(rows, LOSS)
    got = trainer.update(rows, LOSS)
    for name in ("loss",) if kind == "lora" else ("loss", "grad_norm"):
        assert got[name] == pytest.approx(wanted[name], rel=rough, abs=rough)
    trainer.offload()
    trainer.export(tmp_path)
    weights = trainer.weights()
    exported = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for key, parameter in exported.named_parameters():
        assert torch.equal(parameter, weights[key])
    assert weights_digest(weights) == weights_digest(exported.state_dict())  # whatever the backend
    before = copied(weights)
    trainer.update(rows, LOSS)
    if kind not in TORCH:  # whose weights are the live ones
        assert all(torch.equal(weights[key], before[key]) for key in before)


@pytest.mark.parametrize(
    "kind",
    [
        *("torch", "lora", slow("zero2_fp32")),
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("zero3", "zero2_fp32 lora", "zero3 lora")),
    ],
)
def test_a_critic_trains_its_head_first_and_then_everything(kind: str, tmp_path: Path) -> None:
    rows, settings = critic_training_rows(), SETTINGS | {"learning_rate": lambda n: 1e-2}
    adapted = kind.endswith("lora")
    expected = trainer_of("lora" if adapted else "torch", critic(), "critic", **settings)
    with closing(trainer_of(kind, critic(), "critic", **settings)) as trainer:
        before = copied(trainer.weights())
        for head_only in (True, True, False, False):
            expected.set_head_only(head_only)
            expected.update(rows, critic_loss())
            trainer.set_head_only(head_only)
            if trainer.num_updates == 1:  # a checkpoint remembers the phase
                trainer.save_checkpoint(tmp_path)
                trainer.set_head_only(False)
                trainer.load_checkpoint(tmp_path)
            trainer.update(rows, critic_loss())
            if head_only:
                assert moved(trainer, before) == {"score.weight"}
            assert_close(trainer.weights(), copied(expected.weights()), 1e-3)
        with_adapters = {name for name in before if "_proj" in name or name == "score.weight"}
        assert moved(trainer, before) == (with_adapters if adapted else before.keys())


@pytest.mark.parametrize("kind", ["torch", slow("zero2_fp32")])
def test_a_trainer_without_a_learning_rate_only_scores_leaves_and_comes_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def init_distributed(**_): raise RuntimeError('only ranks that train meet')"
    (tmp_path / "deepspeed.py").write_text(code)  # found before the real one
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    rows, expected = policy_training_rows(0), TorchTrainer(policy(), head="policy")
    with closing(trainer_of(kind, policy(), "policy")) as scorer:
        for _ in range(2):
            for mine, theirs in zip(scorer.forward(rows), expected.forward(rows), strict=True):
                np.testing.assert_allclose(mine["logprobs"], theirs["logprobs"], atol=1e-5)
            scorer.offload()
        assert scorer.forward([]) == []
        with pytest.raises(ValueError, match="learning rate"):
            scorer.update(rows, LOSS)


@pytest.mark.soak
def test_ranks_refuse_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    with closing(trainer_of("zero2_fp32", critic(), "critic", **SETTINGS)) as other:
        other.save_checkpoint(tmp_path)
    with closing(trainer_of("zero2_fp32", policy(), "policy", **SETTINGS)) as trainer:
        with pytest.raises(ArtifactError, match=r"has \d+ that are not its") as raised:
            trainer.load_checkpoint(tmp_path)
        assert raised.value.code == ExitCode.ARTIFACT


def test_a_checkpoint_that_is_not_whole_or_of_another_model_is_refused_and_changes_nothing(
    make: Make, tmp_path: Path
) -> None:
    """Which files are damaged, `Checkpoints` knows by their digests."""
    other = TorchTrainer(critic(), head="critic")
    before = copied(other.weights())
    with pytest.raises(ArtifactError, match="not a whole checkpoint"):
        other.load_checkpoint(tmp_path)
    make("torch").save_checkpoint(tmp_path)
    with pytest.raises(ArtifactError, match="another model"):
        other.load_checkpoint(tmp_path)
    assert not moved(other, before)
