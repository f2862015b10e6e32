"""Losses, advantages and values are what they were; `python -m tests.golden` records them anew."""

import json
from pathlib import Path

import pytest

from tests.golden.numbers import BACKENDS, dpo_numbers

TOLERANCE = {"credit": 1e-12}
"""Relative; of fp32 computations, whose sums depend on the machine, 1e-4."""


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=pytest.mark.slow if name == "deepspeed" else ()) for name in BACKENDS],
)
def test_numbers_are_what_they_were(backend: str) -> None:
    if backend == "deepspeed":
        pytest.importorskip("deepspeed", reason="make setup-engines installs it")
    golden = json.loads((Path(__file__).parent / f"{backend}.json").read_text("utf-8"))
    found = BACKENDS[backend]()
    assert len(golden) >= 10
    assert found == pytest.approx(golden, rel=TOLERANCE.get(backend, 1e-4), abs=1e-7)


def test_what_training_backends_recorded_agrees() -> None:
    torch, deepspeed = (
        json.loads((Path(__file__).parent / f"{name}.json").read_text("utf-8"))
        for name in ("torch", "deepspeed")
    )
    assert torch == pytest.approx(deepspeed, rel=1e-4)


def test_dpo_s_loss_and_gradients_are_those_that_trl_gave() -> None:
    """Recorded by TRL itself, as tests/pipeline/training/test_dpo_of_trl.py says."""
    golden = json.loads((Path(__file__).parent / "trl.json").read_text("utf-8"))
    assert len(golden) >= 10
    assert dpo_numbers() == pytest.approx(golden, rel=1e-4, abs=1e-7)
