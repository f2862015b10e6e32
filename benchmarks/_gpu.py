"""What the checks of `one_gpu` share: where they run, models and rows of their sizes, clocks and meters."""

import gc
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks._results import Figure
from pipeline.credit.options import LossOptions
from pipeline.planner.memory import GIB
from pipeline.training import Trainer, TrainingRow
from pipeline.training.losses import policy_loss
from stages.settings import Config
from stages.wiring.build import make_trainer
from stages.wiring.plan_models import MODELS

PEAK = {torch.bfloat16: 989e12, torch.float32: 67e12}
"""Operations a second of an H100 SXM: dense on tensor cores, and plain fp32 (its data sheet)."""
LOSS = policy_loss(LossOptions())


@dataclass(frozen=True)
class Where:
    """What the checks run on: a GPU at full size, or anything at sizes that show that all works."""

    device: str
    quick: bool

    def config(self, name: str, **changes: Any) -> Any:
        """Returns the transformers configuration of a model of configs/models, tiny if that is asked."""
        from transformers import AutoConfig

        content = json.loads((MODELS / f"{name}.json").read_text("utf-8"))
        content |= {"bos_token_id": None, "eos_token_id": None}  # the vocabulary may be smaller
        if self.quick:
            content |= {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "head_dim": 8}
            content |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97}
        return AutoConfig.for_model(content.pop("model_type"), **(content | changes))

    def pick(self, full: int, quick: int) -> int:
        """Returns a size."""
        return quick if self.quick else full

    @property
    def tokens(self) -> int:
        """Of a micro-batch, as the configurations of 8B have it."""
        return self.pick(16384, 128)

    @property
    def row(self) -> int:
        """Tokens of the longest row there."""
        return self.pick(2624, 21)

    @property
    def filled(self) -> int:
        """Tokens of a micro-batch of rows that long: what is planned for."""
        return self.tokens // self.row * self.row

    def settings(self, **training: Any) -> Config:
        """Returns settings of a run on this device."""
        shared = {"backend": "torch", "micro_batch_tokens": self.filled, "recompute": True}
        on_gpu = {"num_gpus": int(self.device == "cuda"), "host_memory_gib": 120.0}
        # The check of adapters wants a base, which is never read: the model is made here.
        sft = {"base": "models/none"} if training.get("lora_rank") else {}
        return Config.model_validate({"training": shared | training, "hardware": on_gpu, "sft": sft})


def model_of(config: Any, device: str) -> Any:
    """Returns a causal language model of random weights, fp32, made where it is used."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def policy_rows_of(vocabulary: int, lengths: Sequence[int], seed: int = 0) -> list[TrainingRow]:
    """Returns the rows of one update: random tokens, the first third of each row a prompt."""
    rng, rows = np.random.default_rng(seed), []
    total = sum(length - length // 3 for length in lengths)
    for length in lengths:
        weight = (np.arange(length) >= length // 3).astype(np.float32) / total
        old = np.full(length, -math.log(vocabulary), np.float32)
        columns: dict[str, np.ndarray] = {
            "weight": weight,
            "advantages": rng.normal(size=length).astype(np.float32),
        }
        columns |= {"old_logprobs": old, "engine_logprobs": old}
        rows.append(TrainingRow(rng.integers(0, vocabulary, length).astype(np.int32), columns))
    return rows


def wait(device: str) -> None:
    """Waits until the GPU has done what it was asked."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Returns the seconds of some work, the GPU's included."""
    wait(device)
    started = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - started


def used(device: str) -> float:
    """Returns the bytes of the GPU that are taken, by any process; NaN without one."""
    if device != "cuda":
        return math.nan
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


def peak_of(work: Callable[[], object], device: str) -> tuple[float, float]:
    """Returns the peak of the bytes that torch has allocated while something works, and the bytes before."""
    if device != "cuda":
        work()
        return math.nan, math.nan
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated()), float(before)


def empty() -> None:
    """Frees what nobody holds."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing without a GPU


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """Returns ||ours - reference|| / ||reference||."""
    ours, reference = ours.detach().double().cpu(), reference.detach().double().cpu()
    return float((ours - reference).norm() / reference.norm())


def memory_figures(planned: float, peak: float) -> dict[str, Figure]:
    """Returns planned and measured memory."""
    return {"planned GiB": planned / GIB, "measured GiB": peak / GIB, "planned / measured": planned / peak}


def trainer_of(where: Where, model: Any, *, rate: float = 1e-6, **training: Any) -> Trainer:
    """Returns the trainer that settings make of a model."""
    return make_trainer(where.settings(**training), model, head="policy", learning_rate=lambda _: rate)
