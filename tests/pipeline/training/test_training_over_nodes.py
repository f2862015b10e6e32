"""DeepSpeed over two nodes of this machine: one rank on each is two ranks on one, to the bit."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from pipeline.models.policy import weights_digest
from pipeline.processes.life import Scope, workers_of
from pipeline.training.deepspeed import DeepSpeedTrainer
from pipeline.training.losses import critic_loss
from pipeline.training.protocol import TrainingRow
from pipeline.training.torch import TorchTrainer
from tests.pipeline.training.conftest import TORCH, options_of
from tests.pipeline.training.helpers import (
    LOSS,
    SETTINGS,
    critic,
    critic_training_rows,
    policy,
    policy_training_rows,
)
from tests.pipeline.training.nodes import two_nodes


def trainer_of(kind: str, ranks: int, model: Any, head: str, **settings: Any) -> DeepSpeedTrainer:
    zero = kind.removesuffix(" lora")
    changes = TORCH["lora"] if zero != kind else {}
    options = options_of(zero, ranks)
    return DeepSpeedTrainer(model, head=head, options=options, **settings | changes)


def contents(file: Path) -> dict[str, Any]:
    """Returns what a rank saved; its names have no fixed order in the file."""
    with safe_open(file, "pt") as tensors:
        starts = tensors.metadata()
        return {name: (starts[name], tensors.get_tensor(name).tolist()) for name in sorted(tensors.keys())}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("zero2_fp32", marks=pytest.mark.slow),
        pytest.param("zero2_fp32 lora", marks=pytest.mark.soak),
        pytest.param("zero3", marks=pytest.mark.soak),
    ],
)
def test_a_rank_on_each_of_two_nodes_trains_as_two_ranks_on_one(kind: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    settings = SETTINGS | {"micro_batch_tokens": 60, "recompute": kind.startswith("zero3")}
    options_of(kind.removesuffix(" lora"))
    with two_nodes(tmp_path / "stage", "deepspeed") as pair:
        for ranks, scope in ((2, Scope()), (1, pair.scope())):
            folder = tmp_path / str(ranks)
            with workers_of(scope):
                trainer = trainer_of(kind, ranks, policy(), "policy", **settings)
            with closing(trainer):
                metrics = [trainer.update(policy_training_rows(update), LOSS) for update in range(2)]
                trainer.offload()
                digests = [weights_digest(trainer.weights())]
                files = trainer.save_checkpoint(folder / "checkpoint")
                saved = {name: contents(folder / "checkpoint" / name) for name in files}
                trainer.update(policy_training_rows(9), LOSS)
                digests.append(weights_digest(trainer.weights()))
                trainer.load_checkpoint(folder / "checkpoint")
                metrics.append(trainer.update(policy_training_rows(2), LOSS))
                rows = policy_training_rows(3)
                scores = [output["logprobs"] for output in trainer.forward(rows)]
                trainer.export(folder / "exported")
            exported = (folder / "exported" / "model.safetensors").read_bytes()
            seen.append((metrics, digests, saved, exported, np.concatenate(scores).tobytes()))
    one, two = seen
    assert two == one
    assert len(set(one[1])) == 2  # the digest of other weights is another


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_critic_on_two_nodes_trains_as_on_one_and_scores_as_torch_does(tmp_path: Path) -> None:
    """Its weights lie in no file, so they travel, and so does its head beside adapters."""
    digests: list[str] = []
    rows, settings = critic_training_rows(), SETTINGS | {"learning_rate": lambda n: 1e-2}
    options_of("zero2_fp32")
    with two_nodes(tmp_path / "stage", "deepspeed") as pair:
        for ranks, scope in ((2, Scope()), (1, pair.scope())):
            with workers_of(scope):
                learner = trainer_of("zero2_fp32 lora", ranks, critic(), "critic", **settings)
            with closing(learner):
                for head_only in (True, False):
                    learner.set_head_only(head_only)
                    learner.update(rows, critic_loss())
                digests.append(weights_digest(learner.weights()))
        with workers_of(pair.scope()):
            scorer = trainer_of("zero2_fp32", 1, critic(), "critic")
        with closing(scorer):
            for _ in range(2):  # it reads its weights again after it has left
                for mine, theirs in zip(scorer.forward(rows * 2), torch_scores(rows * 2), strict=True):
                    for name, column in theirs.items():
                        np.testing.assert_allclose(mine[name], column, atol=1e-5)
                scorer.offload()
    assert digests[0] == digests[1]


def torch_scores(rows: list[TrainingRow]) -> list[dict[str, np.ndarray]]:
    return TorchTrainer(critic(), head="critic").forward(rows)
