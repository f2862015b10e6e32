"""Arms of a comparison that a stage refused: the others are measured, and the results say who is missing."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import _run
from benchmarks._comparisons import Comparison, comparison_rows
from benchmarks._levers import measure_of
from benchmarks._regimes import benchmark_of
from benchmarks._run import Asked, main
from pipeline.columns import COMPARISON, SPENDING
from pipeline.report.comparison import comparison_report
from pipeline.schema import TableSpec, table_of, write_parquet

GATE = "actor ended with 4: the critic's gate failed (ev_within is -0.1). Next: more tasks, or allow"
SIBLINGS = "stored ended with 4: direct_advantage compares next steps; there is no state with two. Next: more"
COSTS = {"rollouts": 0.0, "tokens": 0.0, "seconds": 0.0, "amortised_rollouts": 0.0}


def look(arm: str, iteration: int, success: float, paid: float) -> dict[str, Any]:
    of = {"arm": arm, "seed": 3, "iteration": iteration, "success": success, "training_return": None}
    judged = {"rewards": [success] * 2, "task_ids": ["a", "b"], "clusters": ["a", "b"]}
    return of | dict.fromkeys(COSTS, paid) | judged


LOOKS = [look("no_critic", -1, 0.2, 0), look("no_critic", 0, 0.2, 0), look("no_critic", 8, 0.7, 900)]
LOOKS += [look("v_dapo", -1, 0.2, 0)]  # its actor never began
SPENT = [{"arm": "no_critic", "seed": 3, "stage": "actor"} | dict.fromkeys(COSTS, 900.0)]
SPENT += [{"arm": "v_dapo", "seed": 3, "stage": "rollouts"} | dict.fromkeys(COSTS, 400.0)]


def write(path: Path, spec: TableSpec, rows: list[dict[str, Any]]) -> None:
    table = table_of(spec, {name: [row[name] for row in rows] for name in spec.schema.names})
    write_parquet(table, spec, path)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Lets the command of a comparison leave what it leaves behind if runs came to no end."""

    def leave(failed: dict[str, str], run: str = "sparse-seed3") -> None:
        folder = tmp_path / run / "comparison"
        by_run = {(name.removesuffix("-seed3"), 3): words for name, words in failed.items()}
        report = comparison_report(LOOKS, SPENT, method="v_dapo", threshold=0.5, failed=by_run)

        def command(*_: Any, **__: Any) -> Any:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / "comparison.parquet", COMPARISON, LOOKS)
            write(folder / "spending.parquet", SPENDING, SPENT)
            (folder / "report.json").write_text(json.dumps(report))
            (tmp_path / run / "arms" / "v_dapo-seed3" / "critic_report").mkdir(parents=True, exist_ok=True)
            return SimpleNamespace(returncode=5)

        monkeypatch.setattr(subprocess, "run", command)
        monkeypatch.setattr(_run, "commit", lambda: "0" * 8)
        monkeypatch.setattr(_run, "machine_facts", dict)

    return leave


def measured(tmp_path: Path) -> dict[str, Any]:
    argv = ["--seeds", "3", "--data-dir", str(tmp_path), "--results", str(tmp_path / "results")]
    assert main(benchmark_of("sparse", ""), argv) == 0
    return dict(json.loads((tmp_path / "results" / "sparse-seed3.json").read_text()))


def test_the_other_arms_keep_their_looks_and_a_refused_one_is_named_with_the_reason(
    ended: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended({"v_dapo-seed3": GATE, "direct_advantage-seed3": SIBLINGS})
    found = measured(tmp_path)
    assert found["refused"] == {
        "v_dapo-seed3": "actor: the critic's gate failed (ev_within is -0.1).",
        "direct_advantage-seed3": "stored: direct_advantage compares next steps; there is no state with two.",
    }
    assert "REFUSED  v_dapo-seed3: actor: the critic's gate" in capsys.readouterr().out
    values = {(row["variant"], row["metric"]): row["value"] for row in found["rows"]}
    assert values["no_critic", "success at 8"] == 0.7
    # Of a refused one there is what it came to, and no more: the policy that it began with, what it paid.
    assert values["v_dapo", "success at -1"] == 0.2
    assert values["v_dapo", "rollouts of rollouts"] == 400
    assert {metric for arm, metric in values if arm == "v_dapo" and metric.startswith("success")} == {
        "success at -1"
    }
    assert not [arm for arm, _ in values if arm == "direct_advantage"]


@pytest.mark.parametrize("words", ["actor ended with -9: it said nothing", "sft ended with 3: no policy"])
def test_an_arm_that_another_start_may_mend_leaves_no_results(
    ended: Callable[..., None], tmp_path: Path, words: str
) -> None:
    ended({"v_dapo-seed3": GATE, "direct_advantage-seed3": words})
    with pytest.raises(SystemExit, match=r"comparison ended with 5\. The same command goes on"):
        measured(tmp_path)
    assert not (tmp_path / "results").exists()


def asked(tmp_path: Path, **options: Any) -> Asked:
    return Asked(3, [], tmp_path, False, SimpleNamespace(**options), lambda rows: None, {})


def test_a_run_that_was_refused_before_its_actor_has_no_gain(
    ended: Callable[..., None], tmp_path: Path
) -> None:
    ended({"v_dapo-seed3": GATE}, "toy")
    asks = asked(tmp_path)
    rows = {(row.variant, row.metric): row.value for row in comparison_rows("toy.yaml", "toy", asks)}
    assert list(asks.refused) == ["v_dapo-seed3"]
    assert rows["no_critic seed 3", "gain"] == pytest.approx(0.5)
    assert {metric for run, metric in rows if run == "v_dapo seed 3"} == {
        *("start", "rollouts spent", "tokens spent", "seconds spent")
    }


def test_a_lever_whose_arm_beside_it_was_refused_is_measured_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"comparison": [row for row in LOOKS if row["arm"] == "no_critic"], "spending": SPENT[:1]}
    monkeypatch.setattr(Comparison, "table", lambda self, name: tables[name])
    monkeypatch.setattr("benchmarks._levers.comparison_made", lambda *_: Comparison(tmp_path))
    levers = {"no_critic": ("v_dapo", "v_dapo", {"actor.passes": 2})}
    rows = {row.metric: row.value for row in measure_of("sparse", levers)(asked(tmp_path, levers=""))}
    assert rows["success at the end"] == 0.7
    assert not [metric for metric in rows if metric.startswith("ahead")]
