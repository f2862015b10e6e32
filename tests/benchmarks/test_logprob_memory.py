from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks import logprob_memory as bench
from benchmarks._measuring import judge


def results_of(
    memory: float = 0.1, seconds: float = 1.1, difference: float = 1e-6, fill: float = 0.995
) -> Any:
    runs = {0: [{"seconds": 10.0, "extra_bytes": 8 << 30}] * 3}
    runs |= {
        piece: [{"seconds": 10 * seconds, "extra_bytes": int(memory * (8 << 30))}] * 3
        for piece in bench.PIECES
    }
    differences = {str(piece): {"loss": 0.0, "weight": difference} for piece in bench.PIECES}
    return {"rows": bench.table_rows(runs, differences), "packing_fill": fill}


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, []),
        ({"memory": 0.13}, ["extra memory at most 1/8 of the whole matrix's"]),
        ({"seconds": 1.31}, ["time at most 1.3 times the whole matrix's"]),
        ({"difference": 2e-5}, ["loss and gradients equal to 1e-5"]),
        ({"difference": float("nan")}, ["loss and gradients equal to 1e-5"]),
        ({"fill": 0.98}, ["packed batches at least 99 % full"]),
    ],
)
def test_each_criterion_fails_alone(changes: dict[str, float], failed: list[str]) -> None:
    judged = judge(results_of(**changes), bench.CRITERIA)
    assert [name for name, met in judged.items() if not met] == failed


def test_ratios_are_between_runs_of_one_turn() -> None:
    runs = {
        0: [{"seconds": seconds, "extra_bytes": 1000} for seconds in (1.0, 10.0, 2.0)],
        1024: [{"seconds": seconds, "extra_bytes": 100} for seconds in (1.1, 12.0, 2.6)],
    }
    whole, tiles = bench.table_rows(runs, {})
    assert whole["time_ratio"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert tiles["time_ratio"]["median"] == pytest.approx(1.2)
    assert tiles["memory_ratio"]["median"] == 0.1
    assert tiles["seconds"]["median"] == 2.6


def test_the_judged_row_is_that_of_the_default_setting() -> None:
    assert bench.DEFAULT in bench.PIECES
    results = copy.deepcopy(results_of())
    for row in results["rows"]:
        if row["piece_tokens"] != bench.DEFAULT:
            row["time_ratio"]["median"] = 9.0
    assert all(judge(results, bench.CRITERIA).values())


def test_a_table_without_the_default_row_meets_nothing_that_is_about_it() -> None:
    assert sum(judge({"rows": [], "packing_fill": 1.0}, bench.CRITERIA).values()) == 1


def test_skewed_rows_fill_packed_batches() -> None:
    assert 0.99 <= bench.fill() <= 1


def test_the_versions_agree_on_a_small_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VOCABULARY", 9001)  # more than one tile
    monkeypatch.setattr(bench, "WIDTH", 16)
    found = bench.compare(40)
    assert set(found) == {str(piece) for piece in bench.PIECES}
    assert max(max(differences.values()) for differences in found.values()) < 1e-5
