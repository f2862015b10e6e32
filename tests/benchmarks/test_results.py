import importlib
import json
from pathlib import Path

import pytest

from benchmarks._results import Row, judge, read_rows
from benchmarks._run import RESULTS, ROOT
from benchmarks.render import PAGES

FILES = sorted(RESULTS.glob("*.json"))
SCRIPTS = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "BENCHMARK = " in path.read_text()
)


ELSEWHERE = {"one_gpu", "gpu_speed", "recurring"}
"""Need a machine, or hours of one, that a change's author may not have: they may lack results."""


def test_every_script_has_results_and_every_file_a_script() -> None:
    assert {path.stem.partition("-seed")[0] for path in FILES} | ELSEWHERE == set(SCRIPTS)
    assert {path.suffix for path in RESULTS.iterdir()} == {".json"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_small_and_flat_and_its_criteria_follow_from_the_rows(path: Path) -> None:
    assert path.stat().st_size <= 20_000
    found = json.loads(path.read_text("utf-8"))
    refused = ["refused"] * ("refused" in found)
    assert list(found) == ["command", "commit", "machine", "criteria", *refused, "rows"]
    assert str(Path.home()) not in path.read_text("utf-8")
    names = {"seed", *Row.__dataclass_fields__}
    assert all({"seed", "variant", "metric", "value"} <= row.keys() <= names for row in found["rows"])
    figures = [(row["variant"], row["metric"]) for row in found["rows"]]
    assert len(set(figures)) == len(figures)
    script = importlib.import_module(f"benchmarks.{path.stem.partition('-seed')[0]}")
    assert judge(read_rows(path), script.BENCHMARK.criteria) == found["criteria"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_rendered_pages_are_current(path: Path) -> None:
    assert path.read_text("utf-8") == PAGES[path](), "run make results"
