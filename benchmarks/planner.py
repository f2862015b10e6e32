"""Planned memory of an update against the measured one, on a model that fits here.

    python benchmarks/planner.py

A Qwen3 of 113 million parameters, random weights, one process, torch's trainer, fp32. Each measurement is a
process of its own: peak resident memory over two updates of two micro-batches, above what the process had
when it had only imported its modules. The allocator is told to give freed memory back
(MALLOC_MMAP_THRESHOLD_), else what it hoards would be measured.
Results: benchmarks/results/planner.json. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measuring import RESULTS, conclude, spread, status_bytes
from benchmarks.demo_seeds import machine_facts
from pipeline.planner.memory import GIB, Training, shape_of, training_phase

VOCABULARY = 32_000
CASES = {
    "2,048 tokens": Training(micro_batch_tokens=2048, row_tokens=512, piece_tokens=512),
    "4,096 tokens": Training(micro_batch_tokens=4096, row_tokens=512, piece_tokens=512),
    "4,096 tokens, recompute": Training(
        micro_batch_tokens=4096, row_tokens=512, piece_tokens=512, recompute=True
    ),
    "8,192 tokens, recompute": Training(
        micro_batch_tokens=8192, row_tokens=1024, piece_tokens=512, recompute=True
    ),
}


def within(case: str) -> Any:
    """Returns the criterion that the plan of a case is within 10 % of what was measured."""
    return lambda results: (
        abs(next(row["ratio"] for row in results["rows"] if row["case"] == case) - 1) <= 0.1
    )


CRITERIA = {
    "at least 100M parameters": lambda results: results["parameters"] >= 100_000_000,
    **{f"{case}: within 10 %": within(case) for case in CASES},
}
"""What must be shown."""


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


def measure(how: Training) -> int:
    """Returns the peak in bytes above an import-only process, over two updates of two micro-batches each."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

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
        micro_batch_tokens=how.micro_batch_tokens,
        piece_tokens=how.piece_tokens,
        recompute=how.recompute,
    )
    rng = np.random.default_rng(0)
    rows = [
        TrainingRow(
            rng.integers(0, VOCABULARY, how.row_tokens).astype(np.int32),
            {"weight": np.full(how.row_tokens, 1e-4, np.float32)},
        )
        for _ in range(2 * how.micro_batch_tokens // how.row_tokens)
    ]
    for _ in range(2):
        trainer.update(rows, sft_loss)
    return status_bytes("VmHWM") - imported


def in_process(case: str) -> int:
    """Returns `measure` of a case in a process of its own."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144"}
    command = [sys.executable, __file__, "--one", case]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return int(done.stdout.splitlines()[-1])


def main() -> int:
    """Measures every case, prints the table, writes the results; returns 1 if a criterion fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS / "planner.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(measure(CASES[options.one]))
        return 0
    shape = shape_of(config())
    machine = machine_facts()
    print(f"{shape.parameters:,} parameters, torch {machine['torch']}, fp32, AdamW")
    print(f"{'update':<26}{'planned GiB':>12}{'measured':>10}{'planned/measured':>18}")
    rows = []
    for case, how in CASES.items():
        phase = training_phase(case, config(), how)
        planned = phase.device_bytes
        measured = spread([in_process(case) for _ in range(options.repeats)])
        ratio = planned / measured["median"]
        print(f"{case:<26}{planned / GIB:>12.2f}{measured['median'] / GIB:>10.2f}{ratio:>18.3f}", flush=True)
        rows.append(
            {
                "case": case,
                "settings": asdict(how),
                "planned_bytes": dict(phase.device),
                "planned": planned,
                "measured": measured,
                "ratio": ratio,
            }
        )
    results = {
        "machine": machine,
        "parameters": shape.parameters,
        "repeats": options.repeats,
        "rows": rows,
    }
    return conclude(options.results, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
