"""DeepSpeed on two gloo ranks does what one process does: losses, gradients, weights, resumption."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from pipeline.credit import LossOptions
from pipeline.errors import ArtifactError, DivergenceError
from pipeline.ids import file_sha256
from pipeline.processes.shared_weights import SharedWeights, read_shared
from pipeline.processes.worker import WorkerDiedError
from pipeline.training import TrainingRow, deepspeed_rank
from pipeline.training.deepspeed import (
    DeepSpeedOptions,
    DeepSpeedTrainer,
    building_extensions,
    extensions_folder,
    threads_of_a_rank,
)
from pipeline.training.deepspeed_config import read_deepspeed_config
from pipeline.training.deepspeed_rank import MOMENTS, Rank
from pipeline.training.losses import critic_loss, policy_loss
from pipeline.training.torch import TorchTrainer

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[3] / "configs" / "deepspeed"
VOCAB = 50
SETTINGS: dict[str, Any] = {
    "learning_rate": lambda n: 1e-2 / (n + 1),
    "weight_decay": 0.1,
    "micro_batch_tokens": 25,  # several micro-batches a rank
    "grad_clip": 0.5,
}
ZERO = {
    stage: {
        "zero_optimization": {"stage": stage}
        | ({"stage3_param_persistence_threshold": 0} if stage == 3 else {})
    }
    for stage in (1, 2, 3)
}


def model(kind: type, seed: int = 0, **changes: int) -> Any:
    torch.manual_seed(seed)
    return kind(
        Qwen3Config(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
            intermediate_size=24, vocab_size=VOCAB, max_position_embeddings=64, initializer_range=0.2,
            tie_word_embeddings=True, pad_token_id=0, **changes,
        )
    )  # fmt: skip


def rows_of(seed: int, number: int = 7) -> list[TrainingRow]:
    """Returns rows of 4 to 40 tokens, so that ranks and micro-batches hold unequal numbers of tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        size = int(rng.integers(4, 41))
        weight = (rng.random(size) < 0.5).astype(np.float32) / 60
        weight[0] = 0
        numbers = {
            name: rng.normal(-2, 1, size).astype(np.float32) for name in ("old_logprobs", "ref_logprobs")
        }
        numbers |= {"engine_logprobs": numbers["old_logprobs"] + 0.1, "weight": weight}
        numbers["advantages"] = rng.normal(size=size).astype(np.float32)
        rows.append(TrainingRow(rng.integers(0, VOCAB, size).astype(np.int32), numbers))
    return rows


def deepspeed_trainer(zero: int, ranks: int = 2, seed: int = 0, **changes: Any) -> DeepSpeedTrainer:
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    options = DeepSpeedOptions(num_ranks=ranks, config=ZERO[zero], threads=1, timeout=300)
    return DeepSpeedTrainer(
        model(Qwen3ForCausalLM, seed), head="policy", options=options, **SETTINGS | changes
    )


@pytest.fixture
def closing() -> Iterator[list[DeepSpeedTrainer]]:
    made: list[DeepSpeedTrainer] = []
    yield made
    for trainer in made:
        trainer.close()


LOSS = policy_loss(LossOptions(kl=0.01))


def moments_of(folder: Path) -> dict[str, torch.Tensor]:
    """Returns every moment of a checkpoint: after one update the first is a tenth of the gradient."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= {k: t for k, t in load_file(file).items() if k.startswith("exp_avg")}
    return tensors


@pytest.mark.parametrize(("zero", "recompute"), [(1, False), (2, False), (3, False), (3, True)])
def test_losses_gradients_and_weights_are_those_of_one_process(
    zero: int, recompute: bool, tmp_path: Path, closing: list[DeepSpeedTrainer]
) -> None:
    alone = TorchTrainer(model(Qwen3ForCausalLM), head="policy", **SETTINGS)
    closing.append(deepspeed_trainer(zero, recompute=recompute))
    [ranks] = closing
    for update in range(5):
        rows = rows_of(update)
        expected, got = alone.update(rows, LOSS), ranks.update(rows, LOSS)
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
        for name, trainer in (("alone", alone), ("ranks", ranks)):
            trainer.save_checkpoint(tmp_path / name)
        expected_moments, moments = moments_of(tmp_path / "alone"), moments_of(tmp_path / "ranks")
        assert expected_moments.keys() == moments.keys()
        for name, tensor in expected_moments.items():
            scale = float(tensor.abs().max())
            torch.testing.assert_close(moments[name], tensor, rtol=1e-4, atol=1e-4 * scale)
    weights = ranks.weights()
    for name, parameter in alone.model.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(ranks.forward(rows_of(9)), alone.forward(rows_of(9)), strict=True):
        np.testing.assert_allclose(mine["logprobs"], theirs["logprobs"], atol=1e-4)
    assert ranks.forward([]) == []


@pytest.mark.parametrize(("zero", "resumed_ranks"), [(1, 2), (2, 1), (3, 1), (3, 2)])
def test_a_checkpoint_goes_on_on_another_number_of_ranks(
    zero: int, resumed_ranks: int, tmp_path: Path, closing: list[DeepSpeedTrainer]
) -> None:
    closing.append(whole := deepspeed_trainer(zero))
    for update in range(2):
        whole.update(rows_of(update), LOSS)
    whole.save_checkpoint(tmp_path)
    closing.append(resumed := deepspeed_trainer(zero, resumed_ranks, seed=9))
    resumed.load_checkpoint(tmp_path)
    for update in range(2, 4):
        expected, got = whole.update(rows_of(update), LOSS), resumed.update(rows_of(update), LOSS)
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
    reference = {name: tensor.clone() for name, tensor in whole.weights().items()}
    for name, tensor in resumed.weights().items():
        torch.testing.assert_close(tensor, reference[name], rtol=1e-4, atol=1e-5)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, closing: list[DeepSpeedTrainer]) -> None:
    closing.append(trainer := deepspeed_trainer(2, 1))
    trainer.update(rows_of(0), LOSS)
    trainer.save_checkpoint(tmp_path)
    [file] = tmp_path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match="SHA-256"):
        trainer.load_checkpoint(tmp_path)


def test_a_loss_or_gradient_that_is_not_finite_changes_no_weight(closing: list[DeepSpeedTrainer]) -> None:
    closing.append(trainer := deepspeed_trainer(2))
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    rows = rows_of(0)
    rows[0].columns["advantages"][:] = np.nan
    with pytest.raises(DivergenceError):
        trainer.update(rows, LOSS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.weights().items())
    trainer.update(rows_of(1), LOSS)  # and nothing of the bad gradient is left
    fresh = TorchTrainer(model(Qwen3ForCausalLM), head="policy", **SETTINGS)
    fresh.update(rows_of(1), LOSS)
    weights = trainer.weights()
    for name, parameter in fresh.model.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-4, atol=1e-5)


def test_the_rank_that_failed_first_is_the_one_that_is_told_of(closing: list[DeepSpeedTrainer]) -> None:
    """Rank 0 has the longer row and waits for rank 1, whose row lacks what the loss needs."""
    closing.append(trainer := deepspeed_trainer(2))
    columns = {
        name: np.full(20, 0.1, np.float32)
        for name in ("weight", "advantages", "old_logprobs", "engine_logprobs", "ref_logprobs")
    }
    whole = TrainingRow(np.arange(20, dtype=np.int32), columns)
    wanting = TrainingRow(np.arange(10, dtype=np.int32), {"weight": np.full(10, 0.1, np.float32)})
    with pytest.raises(WorkerDiedError, match=r"(?s)^DeepSpeed rank 1 .*KeyError"):
        trainer.update([whole, wanting], LOSS)


def test_a_rank_that_is_killed_is_noticed_while_others_wait(closing: list[DeepSpeedTrainer]) -> None:
    closing.append(trainer := deepspeed_trainer(2))
    os.kill(trainer._ranks[1].pid, signal.SIGSTOP)
    killing = threading.Timer(2.0, os.kill, (trainer._ranks[1].pid, signal.SIGKILL))
    killing.start()
    with pytest.raises(WorkerDiedError, match=r"^DeepSpeed rank 1 .* was killed by SIGKILL"):
        trainer.update(rows_of(0), LOSS)
    killing.join()


def test_a_build_that_was_killed_does_not_stop_the_next_start(closing: list[DeepSpeedTrainer]) -> None:
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    with building_extensions():  # no other group starts meanwhile
        folder = extensions_folder()
        assert folder is not None
        (left_behind := folder / "deepspeed_shm_comm" / "lock").parent.mkdir(exist_ok=True)
        left_behind.touch()
    closing.append(trainer := deepspeed_trainer(2, 1))
    assert trainer.update(rows_of(0), LOSS)["grad_norm"] > 0
    assert not left_behind.exists()


def test_groups_of_ranks_start_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    seen = []

    def start() -> None:
        with building_extensions():
            seen.append("second")

    with building_extensions():
        second = threading.Thread(target=start)
        second.start()
        second.join(0.5)
        seen.append("first")
    second.join(60)
    assert seen == ["first", "second"]


@pytest.mark.parametrize(("threads", "ranks", "expected"), [(0, 2, 3), (0, 8, 1), (5, 8, 5)])
def test_ranks_share_the_cores(
    threads: int, ranks: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    assert threads_of_a_rank(DeepSpeedOptions(num_ranks=ranks, threads=threads)) == expected


def test_two_trainers_at_once_need_no_port(
    monkeypatch: pytest.MonkeyPatch, closing: list[DeepSpeedTrainer]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # what a launcher above may have left behind
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        for seed in (0, 1):
            closing.append(deepspeed_trainer(2, seed=seed))
        for seed, ranks in enumerate(closing):
            alone = TorchTrainer(model(Qwen3ForCausalLM, seed), head="policy", **SETTINGS)
            rows = rows_of(seed)
            assert ranks.update(rows, LOSS) == pytest.approx(alone.update(rows, LOSS), rel=1e-4, abs=1e-6)


def test_a_critic_trains_its_head_first_and_then_everything(closing: list[DeepSpeedTrainer]) -> None:
    rng = np.random.default_rng(0)
    columns = {"weight": np.full(8, 0.1), "targets": rng.random(8)}
    rows = [TrainingRow(np.arange(8, dtype=np.int32), {k: v.astype(np.float32) for k, v in columns.items()})]
    settings = SETTINGS | {"learning_rate": lambda n: 1e-2}
    options = DeepSpeedOptions(num_ranks=2, config=ZERO[2], threads=1, timeout=300)
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    kind = Qwen3ForSequenceClassification
    closing.append(
        ranks := DeepSpeedTrainer(model(kind, num_labels=2), head="critic", options=options, **settings)
    )
    alone = TorchTrainer(model(kind, num_labels=2), head="critic", **settings)
    for phase in (["score"], ["score"], None, None):
        for trainer in (ranks, alone):
            trainer.set_trainable(phase)
            trainer.update(rows, critic_loss())
        weights = ranks.weights()
        for name, parameter in alone.model.named_parameters():
            torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("zero", [2, 3, "3 with Adam on the host"])
def test_offloading_between_updates_changes_nothing(
    zero: int | str, tmp_path: Path, closing: list[DeepSpeedTrainer]
) -> None:
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    trainers = []
    for _ in range(2):
        config = ZERO[3 if isinstance(zero, str) else zero]
        if isinstance(zero, str):
            offload = {"offload_optimizer": {"device": "cpu"}}
            config = {"zero_optimization": config["zero_optimization"] | offload}
        options = DeepSpeedOptions(num_ranks=2, config=config, threads=1, timeout=300)
        trainers.append(DeepSpeedTrainer(model(Qwen3ForCausalLM), head="policy", options=options, **SETTINGS))
        closing.append(trainers[-1])
    undisturbed, offloaded = trainers
    for update in range(2):
        offloaded.offload()
        offloaded.offload()
        assert offloaded.update(rows_of(update), LOSS) == undisturbed.update(rows_of(update), LOSS)
    for part in ("weights", "checkpoint"):
        offloaded.offload()
        if part == "weights":
            expected = {name: tensor.clone() for name, tensor in undisturbed.weights().items()}
            assert all(torch.equal(tensor, expected[name]) for name, tensor in offloaded.weights().items())
            continue
        for trainer in trainers:
            trainer.save_checkpoint(tmp_path / str(trainer is offloaded))
        mine, theirs = moments_of(tmp_path / "True"), moments_of(tmp_path / "False")
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    alone = TorchTrainer(model(Qwen3ForCausalLM), head="policy", **SETTINGS)
    for update in range(2):
        alone.update(rows_of(update), LOSS)
    for name, parameter in alone.model.named_parameters():
        torch.testing.assert_close(expected[name], parameter.detach(), rtol=1e-4, atol=1e-5)


def test_ranks_that_only_score_need_no_deepspeed_leave_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: list[DeepSpeedTrainer]
) -> None:
    options = DeepSpeedOptions(num_ranks=2, config=ZERO[2], threads=1, timeout=300)
    code = "def init_distributed(**_): raise RuntimeError('only ranks that train meet')"
    (tmp_path / "deepspeed.py").write_text(code)  # found before the real one
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    closing.append(scorer := DeepSpeedTrainer(model(Qwen3ForCausalLM), head="policy", options=options))
    alone = TorchTrainer(model(Qwen3ForCausalLM), head="policy")
    for _ in range(2):
        for mine, theirs in zip(scorer.forward(rows_of(0)), alone.forward(rows_of(0)), strict=True):
            np.testing.assert_allclose(mine["logprobs"], theirs["logprobs"], atol=1e-5)
        scorer.offload()


@pytest.mark.parametrize("name", ["zero2.json", "zero2_fp32.json", "zero3_cpu_adam.json"])
def test_the_shipped_configurations_train_and_hand_over_a_model(
    name: str, tmp_path: Path, closing: list[DeepSpeedTrainer]
) -> None:
    """In bf16 the first update is that of bf16 weights, roughly; what is exported is what was trained."""
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    config = read_deepspeed_config(CONFIGS / name)
    options = DeepSpeedOptions(num_ranks=2, config=config, threads=1, timeout=300)
    given = model(Qwen3ForCausalLM)
    parameters = sum(parameter.numel() for parameter in given.parameters())
    closing.append(trainer := DeepSpeedTrainer(given, head="policy", options=options, **SETTINGS))
    assert sum(parameter.numel() for parameter in given.parameters()) == parameters
    alone = TorchTrainer(model(Qwen3ForCausalLM), head="policy", **SETTINGS)
    rough = 1e-5 if "fp32" in name else 0.05
    expected, got = alone.update(rows_of(0), LOSS), trainer.update(rows_of(0), LOSS)
    assert got["loss"] == pytest.approx(expected["loss"], rel=rough, abs=rough)
    assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=rough)
    trainer.offload()
    trainer.export(tmp_path)
    exported = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    weights = trainer.weights()
    for key, parameter in exported.named_parameters():
        assert torch.equal(parameter, weights[key])


NUMBERS = {"embedding": (8, 4), "large": (16, 8), "b": (4, 4), "c": (4, 4), "norm": (4,)}


class Gathering:
    """Stands in for DeepSpeed's gathering, and counts the bytes of what is alive of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.most = 0
        monkeypatch.setattr(Rank, "_whole", lambda _, parameter, kind=None: self.whole(parameter, kind))

    def whole(self, parameter: torch.Tensor, kind: str | None) -> torch.Tensor:
        gathered = parameter.detach() + (0 if kind is None else 1 + MOMENTS.index(kind))
        self.alive.append(weakref.ref(gathered))
        self.most = max(self.most, sum(t.nbytes for ref in self.alive if (t := ref()) is not None))
        return gathered


def rank_of(number: int, world: int = 2) -> Rank:
    """Returns a rank that has parameters and nothing else."""
    rank = object.__new__(Rank)
    rank._rank, rank._world, rank._shared = number, world, SharedWeights()
    rank._parameters = {
        f"model.{name}": torch.nn.Parameter(torch.arange(float(math.prod(shape))).reshape(shape))
        for name, shape in NUMBERS.items()
    }
    return rank


@pytest.mark.parametrize("number", [0, 1])
def test_a_hand_off_holds_one_gathered_tensor_at_a_time(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gathering = Gathering(monkeypatch)
    layout = (rank := rank_of(number)).gather_weights()
    assert len(gathering.alive) == len(NUMBERS)
    assert gathering.most == 4 * 16 * 8  # the largest
    assert (layout is not None) == (number == 0)
    if layout is not None:
        handed_over = dict(read_shared(layout))
        assert all(torch.equal(handed_over[name], parameter) for name, parameter in rank._named())


def test_a_checkpoint_is_written_in_parts_and_never_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = 4 * 50  # of fp32 numbers: several small tensors, less than a large one
    monkeypatch.setattr(deepspeed_rank, "PART_BYTES", part)
    found: dict[str, torch.Tensor] = {}
    for number in (0, 1):
        gathering = Gathering(monkeypatch)
        digests = rank_of(number).save(str(tmp_path))
        assert gathering.most <= 2 * 4 * 16 * 8  # on a CPU: one as large as this kept, and the next gathered
        assert len(digests) > 2
        for name, digest in digests.items():
            assert file_sha256(tmp_path / name) == digest
            tensors = load_file(tmp_path / name)
            assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= part
            assert not found.keys() & tensors.keys()
            found |= tensors
    for place, kind in enumerate(("weight", *MOMENTS)):
        for name, shape in NUMBERS.items():
            expected = torch.arange(float(math.prod(shape))).reshape(shape) + place
            assert torch.equal(found[f"{kind}.{name}"], expected)
