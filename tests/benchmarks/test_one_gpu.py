"""The checks of a real GPU, on a CPU: they work, and what is killed or fails keeps what it had measured."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import _gpu_models, _gpu_runs, _gpu_speed, one_gpu
from benchmarks._gpu import Where
from benchmarks._results import Table
from benchmarks._run import main
from benchmarks.one_gpu import BENCHMARK, CHECKS
from pipeline.training.side_by_side import SideBySide

HERE = Where("cpu", quick=True)


@pytest.mark.parametrize("name", ["attention", "critic", "agreement", "full", "adapters"])
def test_checks_of_models_work(name: str) -> None:
    table = Table(getattr(_gpu_models, name)(HERE))
    assert table.rows
    for variant in table.variants("largest error"):
        assert table(variant, "largest error") < (1e-5 if "fp32" in variant else 2e-2)
    for variant in table.variants("loss is finite"):
        assert table(variant, "loss is finite")
    if name == "agreement":  # both are here
        assert table("trainer, tiny", "difference of three updates") == 0


@pytest.mark.parametrize("name", ["turns", "one_rank", "plain"])
def test_checks_of_speed_work(name: str) -> None:
    assert Table(getattr(_gpu_speed, name)(HERE)).rows


@pytest.mark.slow  # kernels are made by the C++ compiler
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script:DeprecationWarning", "ignore:The .grad attribute:UserWarning"
)
def test_compiled_layers_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SideBySide, "on", lambda _: None)  # threads side by side would compile side by side
    table = Table(_gpu_speed.fused(HERE))
    for variant in table.variants("nats to training"):
        assert table(variant, "nats to training") == 0
        assert 0 < table(variant, "nats to fp32") < 1e-2


def test_what_is_handed_over_is_what_the_engine_plays() -> None:
    table = Table(_gpu_runs.hand_off(HERE))
    for dtype in ("float32", "bfloat16"):
        assert table(f"hand-off, {dtype}", "gap / limit of the probe") < 1
        assert table(f"hand-off, {dtype}", "digest is that of the copies")
    assert table("hand-off, float32", "greedy tokens that are chosen here too") == 1


def test_files_are_measured() -> None:
    table = Table(_gpu_runs.files(HERE))
    assert table("policy, 1.7B", "GB/s of digest") > 0


def test_a_check_that_fails_or_takes_too_long_keeps_its_rows_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = json.dumps({"variant": "a", "metric": "x", "value": 1.0})
    said = f"import sys, time; print({one_gpu.MARK + row!r}, flush=True); "
    ends = {"critic": "sys.exit('no memory')", "full": "time.sleep(60)", "files": ""}
    popen = one_gpu.subprocess.Popen

    def start(command: list[str], **how: Any) -> Any:
        return popen([sys.executable, "-c", said.replace('"a"', f'"{command[4]}"') + ends[command[4]]], **how)

    monkeypatch.setattr(one_gpu, "subprocess", SimpleNamespace(**vars(one_gpu.subprocess) | {"Popen": start}))
    monkeypatch.setitem(CHECKS, "full", one_gpu.Check("", 1))
    assert main(BENCHMARK, ["--only", "critic full files", "--data-dir", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "one_gpu.json").read_text())
    table = {(r["variant"], r["metric"]): r["value"] for r in found["rows"]}
    assert [table["check, " + name, "done"] for name in ends] == [0, 0, 1]
    assert [table[name, "x"] for name in ends] == [1, 1, 1]
    assert found["criteria"]["files is complete"]
    assert not found["criteria"]["full is complete"]
    assert not found["criteria"]["chain is complete"]
