"""Planned memory of an update against the measured one, on a model that fits here.

    python -m benchmarks.planner

A Qwen3 of 113 million random parameters, one process, torch's trainer, fp32, two threads with a pass each.
Each measurement is a process of its own: peak resident memory over two updates of two micro-batches, above
what the process had when it had only imported its modules. The allocator gives freed memory back
(MALLOC_MMAP_THRESHOLD_), else its hoard is measured.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._results import Criteria, Figure, Row, Table, measured, spread
from benchmarks._run import ROOT, Asked, Benchmark, main
from pipeline.planner.activations import Forward
from pipeline.planner.memory import GIB, Training, shape_of, training_phase
from pipeline.training.side_by_side import PASSES

VOCABULARY = 32_000
CASES = {
    "2,048 tokens": Training(Forward(2048, 512), piece_tokens=512, passes=PASSES),
    "4,096 tokens": Training(Forward(4096, 512), piece_tokens=512, passes=PASSES),
    "4,096 tokens, recompute": Training(Forward(4096, 512), piece_tokens=512, recompute=True, passes=PASSES),
    "8,192 tokens, recompute": Training(Forward(8192, 1024), piece_tokens=512, recompute=True, passes=PASSES),
}


def config() -> Any:
    """Returns the configuration of the measured model."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=768,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=2048,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def status_bytes(field: str) -> int:
    """Returns a field of /proc/self/status in bytes, such as VmRSS (resident) or VmHWM (its peak)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def peak_of(how: Training) -> int:
    """Returns the peak in bytes above an import-only process, over two updates of two micro-batches each."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(how.passes)
    from pipeline.training import TrainingRow
    from pipeline.training.losses import sft_loss
    from pipeline.training.torch import TorchTrainer

    (torch.randn(256, 256) @ torch.randn(256, 256)).sum().item()  # libraries make their buffers
    imported = status_bytes("VmRSS")
    torch.manual_seed(0)
    trainer = TorchTrainer(
        AutoModelForCausalLM.from_config(config()),
        head="policy",
        learning_rate=lambda done: 1e-4,
        micro_batch_tokens=how.forward.tokens,
        piece_tokens=how.piece_tokens,
        recompute=how.recompute,
    )
    rng, row_tokens = np.random.default_rng(0), how.forward.row_tokens
    rows = [
        TrainingRow(
            rng.integers(0, VOCABULARY, row_tokens).astype(np.int32),
            {"weight": np.full(row_tokens, 1e-4, np.float32)},
        )
        for _ in range(2 * how.forward.tokens // row_tokens)
    ]
    for _ in range(2):
        trainer.update(rows, sft_loss)
    return status_bytes("VmHWM") - imported


def peak_in_a_process(case: str) -> int:
    """Returns the peak of a case, by this module as a process of its own."""
    command = [sys.executable, "-m", "benchmarks.planner", "--one", case]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "262144"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    return int(done.stdout.splitlines()[-1])


def within(case: str) -> Callable[[Table], bool]:
    """Returns the criterion that the plan of a case is within 10 % of what was measured."""
    return lambda t: abs(t(case, "planned / measured") - 1) <= 0.1


CRITERIA: Criteria = {
    "at least 100M parameters": lambda t: t("model", "parameters") >= 100_000_000,
    **{f"{case}: within 10 %": within(case) for case in CASES},
}


def measure(asked: Asked) -> list[Row]:
    """Returns planned and measured memory of every case."""
    rows = measured("model", {"parameters": shape_of(config()).parameters})
    for case, how in CASES.items():
        planned = training_phase(config(), how).device_bytes
        peaks = [peak_in_a_process(case) for _ in range(asked.options.repeats)]
        figures: dict[str, Figure] = {
            "planned GiB": planned / GIB,
            "measured GiB": spread([peak / GIB for peak in peaks]),
            "planned / measured": planned / spread(peaks)[0],
        }
        rows += measured(case, figures, len(peaks))
    return rows


BENCHMARK = Benchmark("planner", __doc__, measure, CRITERIA, options={"repeats": 1})

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:  # in a process of its own
        print(peak_of(CASES[sys.argv[2]]))
    else:
        sys.exit(main(BENCHMARK))
