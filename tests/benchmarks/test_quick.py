"""Benchmarks at tiny sizes: the critics' share what was sampled and go on, the recorded one has all arms."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    ablations,
    critic_drift,
    critic_gate,
    critic_quality,
    feedback_kinds,
    recorded,
    tool,
    weeks,
)
from benchmarks._critics import fitted, values_of
from benchmarks._material import CONFIG, QUICK, Material
from benchmarks._results import Table, read_rows
from benchmarks._run import ROOT, Benchmark, main
from pipeline.config import load_config
from stages.settings import Config

WHO = ("start", "actor")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_quick_runs_share_what_they_sampled_and_go_on(tmp_path: Path) -> None:
    command, folder = ["--quick", "--seeds", "0", "--data-dir", str(tmp_path)], tmp_path / "quick"
    assert main(critic_quality.BENCHMARK, [*command, "--variants", "soft soft@50"]) == 0
    sampled = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("rollouts*.parquet")}
    assert main(critic_quality.BENCHMARK, command) == 0
    table = Table(read_rows(folder / "critic_quality-seed0.json"))
    assert tuple(table.variants("converged")) == critic_quality.QUICK_VARIANTS
    assert table("soft@50", "label tokens") <= table("soft", "label tokens") / 2
    assert table("trunk:layers1", "trunk") < table("soft", "trunk")

    # The stage's critic and a fit in this process are the same critic: variants differ in what they vary.
    overrides = [*QUICK, "run.seed=0", f"run.data_dir={json.dumps(str(folder))}"]
    material = Material(load_config(Config, ROOT / CONFIG, overrides), folder / "quality-seed0")
    labels, rule, _ = material.labels("soft")
    trainer, calibrator, _ = fitted(material, labels, rule, material.folder / "sft" / "policy")
    values = values_of(material, trainer, calibrator, "none")
    assert values.keys() == material.values.keys()
    for name, found in values.items():
        np.testing.assert_allclose(found, material.values[name], atol=1e-5)

    assert main(critic_gate.BENCHMARK, command) == 0
    judged = Table(read_rows(folder / "critic_gate-seed0.json"))
    for name in (*critic_gate.NO_CRITICS, "under-trained"):
        assert critic_gate.refused(name, critic_gate.MUST_FAIL[name])(judged)

    assert main(critic_drift.BENCHMARK, command) == 0
    assert {"far", "watched"} <= set(Table(read_rows(folder / "critic_drift-seed0.json")).variants("last KL"))
    assert sampled.items() <= {p: p.stat().st_mtime_ns for p in tmp_path.rglob("rollouts*.parquet")}.items()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ablations_are_all_judged_and_go_on(tmp_path: Path) -> None:
    command = ["--quick", "--seeds", "0", "--regimes", "dense", "--data-dir", str(tmp_path)]
    assert main(ablations.BENCHMARK, command) == 0
    path = tmp_path / "quick" / "ablations-seed0.json"
    made = path.read_text()
    table = Table(read_rows(path))
    assert table.variants("ece_excess") == [f"dense, {name}" for name in ablations.VARIANTS]
    assert table("dense, size: 1 layer", "trunk") < table("dense, method", "trunk")
    assert main(ablations.BENCHMARK, command) == 0
    assert path.read_text() == made


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_arm_learns_from_the_same_recorded_sessions(tmp_path: Path) -> None:
    assert main(recorded.BENCHMARK, ["--quick", "--seeds", "0", "--data-dir", str(tmp_path)]) == 0
    table = Table(read_rows(tmp_path / "quick" / "recorded-seed0.json"))
    assert table("sessions", "number") == 72
    assert table(recorded.START, "gain") == 0
    arms = {recorded.START, *recorded.ARMS, *recorded.IMITATED}
    assert set(table.variants("success")) == arms


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("benchmark", "metric", "variants"),
    [
        (weeks.BENCHMARK, "promoted", {f"week {week}" for week in weeks.WEEKS}),
        (weeks.BENCHMARK, "gain", {recorded.START, "served at first", "served at last", "three weeks"}),
        (tool.BENCHMARK, "called when wrong", {f"{of}, {who}" for of in tool.SCALES for who in WHO}),
        (feedback_kinds.BENCHMARK, "gain", set(feedback_kinds.ARMS)),
    ],
    ids=lambda of: of.name if isinstance(of, Benchmark) else None,
)
def test_quick_runs_have_every_line(
    benchmark: Benchmark, metric: str, variants: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / benchmark.name  # made once
    assert main(benchmark, ["--quick", "--seeds", "0", "--data-dir", str(folder)]) == 0
    table = Table(read_rows(folder / "quick" / f"{benchmark.name}-seed0.json"))
    assert set(table.variants(metric)) == variants
