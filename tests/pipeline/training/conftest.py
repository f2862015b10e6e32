"""Groups of DeepSpeed's ranks take long to start: one of each kind serves all tests of a session."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.training.deepspeed import DeepSpeedTrainer
from pipeline.training.deepspeed_config import deepspeed_config
from pipeline.training.rank_group import DeepSpeedOptions
from pipeline.training.torch import TorchTrainer
from tests.pipeline.training.helpers import SETTINGS, policy

CONFIGS = Path(__file__).parents[3] / "configs" / "deepspeed"
TORCH: dict[str, dict[str, Any]] = {
    "torch": {},
    "torch in pieces": {"micro_batch_tokens": 25, "piece_tokens": 3, "recompute": True},
    "lora": {"lora_rank": 4},
}
ZERO: dict[str, Any] = {
    "zero2": deepspeed_config(CONFIGS / "zero2.json", "bfloat16"),
    "zero2_fp32": deepspeed_config(CONFIGS / "zero2_fp32.json", "float32"),
    "zero3_cpu_adam": deepspeed_config(CONFIGS / "zero3_cpu_adam.json", "bfloat16"),
    "zero3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
}
Make = Callable[..., Any]


def options_of(zero: str, ranks: int = 2) -> DeepSpeedOptions:
    pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    return DeepSpeedOptions(num_ranks=ranks, config=ZERO[zero], threads=1)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Gives the policy's trainer of a kind as it started; ports that a launcher left behind are taken."""
    made: dict[tuple[str, int], tuple[DeepSpeedTrainer, Path]] = {}

    def as_new(kind: str, ranks: int = 2) -> Any:
        if kind in TORCH:
            return TorchTrainer(policy(), head="policy", **SETTINGS | TORCH[kind])
        if (kind, ranks) not in made:
            zero = kind.removesuffix(" lora")
            changes = {"micro_batch_tokens": 60, "recompute": zero == "zero3"}  # several a rank
            changes |= TORCH["lora"] if zero != kind else {}
            options = options_of(zero, ranks)
            trainer = DeepSpeedTrainer(policy(), head="policy", options=options, **SETTINGS | changes)
            made[kind, ranks] = trainer, tmp_path_factory.mktemp(f"{kind}-{ranks}")
            trainer.save_checkpoint(made[kind, ranks][1])
        trainer, folder = made[kind, ranks]
        trainer.load_checkpoint(folder)
        return trainer

    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as taken:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        yield as_new
    for trainer, _ in made.values():
        trainer.close()
