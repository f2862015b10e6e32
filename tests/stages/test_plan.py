"""`vdapo plan`: what it prints, what it advises, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load_config
from stages.command import main
from stages.plan import work_of
from stages.settings import Config

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "configs" / "demo.yaml")
QWEN3 = [
    "sft.base=models/Qwen3-8B",
    "sft.num_updates=0",
    f"hardware.model={ROOT}/configs/models/qwen3-8b.json",
]
NODE = ["hardware.num_gpus=8", "hardware.gpu_memory_gib=79", "hardware.gpu_tflops=989",
        "hardware.gpu_bandwidth_gbs=3350", "hardware.host_memory_gib=1000"]  # fmt: skip
SHARDED = ["training.backend=deepspeed", "training.num_ranks=8", "training.recompute=true",
           f"training.deepspeed={ROOT}/configs/deepspeed/zero2.json", "engine.kind=vllm", "engine.replicas=8",
           "engine.dtype=bfloat16", "engine.memory_share=0.45", "training.dtype=bfloat16"]  # fmt: skip


def test_the_demo_fits_its_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DEMO]) == 0
    printed = capsys.readouterr().out
    assert "1,082,752 parameters" in printed
    assert "DOES NOT FIT" not in printed


def test_qwen3_8b_fits_eight_gpus_of_80_gb_and_not_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DEMO, *QWEN3, *NODE, *SHARDED]) == 0
    assert "8,190,735,360 parameters" in capsys.readouterr().out
    assert main(["plan", DEMO, *QWEN3, *NODE, "hardware.gpu_memory_gib=40", *SHARDED]) == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert "does not fit: actor update: no micro-batch does: a lower engine.memory_share" in printed


def test_a_model_that_is_not_here_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", DEMO, "sft.base=models/none"]) == 2
    assert "give hardware.model the config.json" in capsys.readouterr().err
    assert main(["plan"]) == 2


def test_planned_rollouts_are_those_that_the_stages_plan() -> None:
    work = {entry.stage: entry for entry in work_of(load_config(Config, Path(DEMO)))}
    assert work["rollouts"].rollouts == 2600
    assert work["labels"].rollouts == 3600
    assert work["evaluation"].rollouts == 5000
