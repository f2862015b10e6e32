"""Peaks that a GPU has shown, against the plan as it is now; compiled layers take less than it says."""

from typing import Any

import pytest

from benchmarks._gpu import Where
from benchmarks._results import read_rows
from benchmarks._run import RESULTS
from pipeline.planner.activations import Forward, Pass, pass_bytes
from pipeline.planner.memory import GIB, shape_of, training_phase
from stages.wiring.plan_models import training_of

pytestmark = pytest.mark.slow
WHERE = Where("cuda", quick=False)
ADAPTERS = {"dtype": "bfloat16", "lora_rank": 16}


def measured(file: str, variant: str, metric: str) -> float:
    rows = read_rows(RESULTS / f"{file}.json")
    [value] = [row.value for row in rows if (row.variant, row.metric) == (variant, metric)]
    return float(value)


@pytest.mark.parametrize(
    ("file", "variant", "model", "training"),
    [
        ("one_gpu", "trainer, 1.7B", "qwen3-1.7b", {"dtype": "bfloat16"}),
        ("gpu_speed", "trainer, 1.7B", "qwen3-1.7b", {"dtype": "bfloat16"}),
        ("one_gpu", "trainer, 8B adapters", "qwen3-8b", ADAPTERS),
    ],
)
def test_a_trainers_peak_is_planned_within_5_percent(
    file: str, variant: str, model: str, training: dict[str, Any]
) -> None:
    if "lora_rank" in training:
        pytest.importorskip("peft", reason="pip install -e '.[lora]'")
    config = WHERE.config(model)
    plan = training_phase(config, training_of(WHERE.settings(**training), config, WHERE.row))
    assert plan.device_bytes / GIB == pytest.approx(measured(file, variant, "measured GiB"), rel=0.05)


def test_the_peak_of_a_ranks_passes_is_planned_within_5_percent() -> None:
    config = WHERE.config("qwen3-8b")
    how = Forward(WHERE.filled, WHERE.row, half_weights=True, on_gpu=True)
    planned = pass_bytes(config, Pass(how, recompute=True))[1] + 2 * 2 * shape_of(config).parameters
    variant = "one rank, 8B, recomputed, 16,384 tokens"  # weights and gradients in bf16
    assert planned / GIB == pytest.approx(measured("gpu_speed", variant, "peak GiB"), rel=0.05)
