from __future__ import annotations

from typing import Any

import pytest

from benchmarks import planner as bench
from benchmarks._measuring import judge, status_bytes


def results_of(**ratios: float) -> dict[str, Any]:
    return {
        "parameters": 112_000_000,
        "rows": [{"case": case, "ratio": ratios.get(case, 1.0)} for case in bench.CASES],
    }


@pytest.mark.parametrize("ratio", [0.89, 1.11, float("nan")])
@pytest.mark.parametrize("case", bench.CASES)
def test_a_plan_more_than_a_tenth_off_fails_alone(case: str, ratio: float) -> None:
    assert all(judge(results_of(), bench.CRITERIA).values())
    judged = judge(results_of(**{case: ratio}), bench.CRITERIA)
    assert [name for name, met in judged.items() if not met] == [f"{case}: within 10 %"]


def test_a_small_model_or_a_missing_case_shows_nothing() -> None:
    assert not judge(results_of() | {"parameters": 99_000_000}, bench.CRITERIA)["at least 100M parameters"]
    assert sum(judge({"parameters": 112_000_000, "rows": []}, bench.CRITERIA).values()) == 1


def test_the_measured_model_has_more_than_100_million_parameters() -> None:
    assert bench.shape_of(bench.config()).parameters > 100_000_000


def test_a_process_knows_its_memory() -> None:
    assert status_bytes("VmHWM") >= status_bytes("VmRSS") > 10_000_000
    with pytest.raises(ValueError, match="VmNone"):
        status_bytes("VmNone")
