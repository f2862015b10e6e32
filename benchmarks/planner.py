"""Planned memory of an update against the measured one, on a model that fits here.

    python benchmarks/planner.py

A Qwen3 of 113 million parameters, random weights, one process, torch's trainer. Each row is a process of its
own: peak resident memory over two updates, above what it had when it had only imported its modules. The
allocator is told to give freed memory back (MALLOC_MMAP_THRESHOLD_), else what it hoards would be measured.
Results: benchmarks/results/planner.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.planner import GIB, Training, shape_of, training_phase

RESULTS = Path(__file__).resolve().parent / "results" / "planner.json"
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


def config() -> Any:
    """Returns the configuration of the measured model."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=32_000,
        hidden_size=768,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=2048,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def status(field: str) -> int:
    """Returns a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def measure(how: Training) -> dict[str, int]:
    """Returns the peak above an import-only process, over two updates of two micro-batches each."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from pipeline.losses import sft_loss
    from pipeline.training import TrainingRow
    from pipeline.training.torch import TorchTrainer

    (torch.randn(256, 256) @ torch.randn(256, 256)).sum().item()  # libraries make their buffers
    imported = status("VmRSS")
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
            rng.integers(0, 32_000, how.row_tokens).astype(np.int32),
            {"weight": np.full(how.row_tokens, 1e-4, np.float32)},
        )
        for _ in range(2 * how.micro_batch_tokens // how.row_tokens)
    ]
    for _ in range(2):
        trainer.update(rows, sft_loss)
    return {"peak_bytes": status("VmHWM") - imported}


def main() -> None:
    """Measures every case, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measure(CASES[arguments.one])))
        return
    shape = shape_of(config())
    print(f"{shape.parameters:,} parameters, torch {version('torch')}, fp32, AdamW")
    print(f"{'update':<26}{'planned GiB':>12}{'measured':>10}{'planned/measured':>18}")
    rows = []
    for name, how in CASES.items():
        phase = training_phase(name, config(), how)
        command = [sys.executable, __file__, "--one", name]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        measured = json.loads(done.stdout.splitlines()[-1])["peak_bytes"]
        planned = phase.device_bytes
        print(f"{name:<26}{planned / GIB:>12.2f}{measured / GIB:>10.2f}{planned / measured:>18.3f}")
        rows.append(
            {
                "case": name,
                "settings": asdict(how),
                "planned_bytes": dict(phase.device),
                "planned": planned,
                "measured": measured,
                "ratio": planned / measured,
            }
        )
    RESULTS.write_text(
        json.dumps({"parameters": shape.parameters, "torch": version("torch"), "rows": rows}, indent=1) + "\n"
    )
    print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
