"""The harness: what is asked, kept and written, and when a result may take the place of a committed one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _run
from benchmarks._results import Row, Table, judge, measured, read_rows, remembered
from benchmarks._run import Benchmark, main
from pipeline.statistics import Interval

CRITERIA: dict[str, Callable[[Table], bool]] = {"x is small": lambda t: t("a", "x", "high") < 1}


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A benchmark of one figure, and the folders that its results may go to."""
    monkeypatch.setattr(_run, "RESULTS", tmp_path / "results")

    def make(**changes: Any) -> Benchmark:
        def measure(asked: Any) -> list[Row]:
            return measured("a", {"x": Interval(asked.seed / 3, 0.0, asked.options.high)}, n=7)

        given = {"seeds": (0, 2), "quick": ("a.b=1",), "options": {"high": 0.5}} | changes
        return Benchmark("toy", "", measure, CRITERIA, **given)

    return make


def test_each_seed_is_a_file_of_the_one_schema(benchmark: Any, tmp_path: Path) -> None:
    assert main(benchmark(), ["--data-dir", str(tmp_path / "data")]) == 0
    files = sorted((tmp_path / "results").iterdir())
    assert [path.name for path in files] == ["toy-seed0.json", "toy-seed2.json"]
    found = json.loads(files[1].read_text())
    assert list(found) == ["command", "commit", "machine", "criteria", "rows"]
    assert found["command"] == "python -m benchmarks.toy"  # no folder of the machine
    assert found["rows"] == [
        {"seed": 2, "variant": "a", "metric": "x", "value": 0.6667, "low": 0, "high": 0.5, "n": 7}
    ]
    assert read_rows(files[1]) == [Row("a", "x", 0.6667, 0, 0.5, 7)]


@pytest.mark.parametrize("argv", [["--quick"], ["--set", "a.b=2"], ["--high", "0.4"]])
def test_other_settings_take_no_committed_result_s_place(
    argv: list[str], benchmark: Any, tmp_path: Path
) -> None:
    assert main(benchmark(), [*argv, "--data-dir", str(tmp_path / "data"), "--seeds", "1"]) == 0
    assert not (tmp_path / "results").exists()
    assert len(list((tmp_path / "data").rglob("toy-seed1.json"))) == 1


def test_a_criterion_that_is_not_met_ends_with_1_and_quick_judges_nothing(
    benchmark: Any, tmp_path: Path
) -> None:
    where = ["--data-dir", str(tmp_path / "data")]
    assert main(benchmark(options={"high": 1.5}), where) == 1
    assert main(benchmark(options={"high": 1.5}), [*where, "--quick"]) == 0


@pytest.mark.parametrize("rows", [[], [Row("a", "x", 0.1)], [Row("a", "x", 0.1, 0.0, float("nan"))]])
def test_what_is_missing_or_undefined_meets_no_criterion(rows: list[Row]) -> None:
    assert judge(rows, CRITERIA) == {"x is small": False}


def test_numbers_that_are_not_finite_are_null() -> None:
    assert measured("a", {"x": float("nan"), "y": (1.0, float("-inf"), 2.0)}) == [
        Row("a", "x", None),
        Row("a", "y", 1.0, None, 2.0),
    ]


def test_rows_are_remembered_under_their_key_alone(tmp_path: Path) -> None:
    made = [[Row("a", "x", 1.0)], [Row("a", "x", 2.0)]]
    path = tmp_path / "kept" / "a.json"
    assert remembered(path, "one", lambda: made[0]) == made[0]
    assert remembered(path, "one", lambda: made[1]) == made[0]
    assert remembered(path, "two", lambda: made[1]) == made[1]
