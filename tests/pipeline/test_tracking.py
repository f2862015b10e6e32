"""The real wandb, offline: one run for all starts of a stage; whatever happens to it, the stage goes on."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb

from pipeline.artifacts import tracking
from pipeline.artifacts.metrics import read_metrics
from pipeline.runner import Start, run_stage
from tests.pipeline import toy

MESSAGES = (
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "dial"}]},
)
ROLLOUT: Any = SimpleNamespace(task_id="t", attempt=1, draw=0, reward=0.5, messages=MESSAGES)


def start_stage(folder: Path, updates: tuple[int, ...], *argv: str, ends: bool = True) -> int:
    """Runs one start that measures some updates; returns the exit code."""

    def make(start: Start[Any]) -> None:
        start.samples(updates[0], [ROLLOUT] * 9)
        for update in updates:
            start.metrics({"update": update, "loss": float("nan") if update == 2 else 1.0 / (1 + update)})
        start.metrics({"iteration": 0, "val": 0.25})
        start.output("gate.json").write_text("{}")
        if not ends:
            raise RuntimeError("stopped here")
        start.finish(report={"good": True}, done=1)

    overrides = argv or ("run.tracking=wandb",)
    return run_stage(toy.stage_of("s", [["a"]], make), toy.ToyConfig, [toy.config_in(folder), *overrides])


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What the real runs log, as they do."""
    seen: dict[str, list[Any]] = {"log": [], "log_artifact": []}

    def watch(name: str) -> None:
        real = getattr(wandb.Run, name)

        def watched(self: Any, what: Any) -> Any:
            seen[name].append(what)
            return real(self, what)

        monkeypatch.setattr(wandb.Run, name, watched)

    for name in seen:
        watch(name)
    return seen


def test_all_starts_of_a_stage_are_one_offline_run_with_metrics_samples_and_report(
    tmp_path: Path, sent: dict[str, list[Any]]
) -> None:
    assert start_stage(tmp_path, (0, 1), ends=False) == 1
    sent["log_artifact"].clear()
    assert start_stage(tmp_path, (1, 2)) == 0
    logs = tmp_path / "r" / "s" / "logs"
    files = sorted(logs.glob("wandb/offline-run-*/run-*.wandb"))
    assert [path.name for path in files] == [f"run-{(logs / 'wandb_id').read_text()}.wandb"] * 2
    losses = [(line["update"], line["loss"]) for line in sent["log"] if "loss" in line]
    assert losses[:3] == [(0, 1.0), (1, 0.5), (1, 0.5)]
    assert str(losses[3]) == "(2, nan)"
    measured = [(line["update"], line["val"]) for line in sent["log"] if "val" in line]
    assert measured == [(1, 0.25), (2, 0.25)]
    [table_file] = files[0].parent.rglob("*.table.json")
    table = json.loads(table_file.read_text())
    assert table["columns"] == list(tracking.COLUMNS)
    assert table["data"] == [[0, "t", 1, 0, 0.5, 'user: hello\nassistant:  [{"name": "dial"}]']] * 4
    [report] = [artifact for artifact in sent["log_artifact"] if artifact.type == "report"]
    assert report.name.split(":")[0] == "r-s"
    assert set(report.manifest.entries) == {"report.json", "gate.json"}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda patch: patch.setenv("WANDB_MODE", "nonsense"), "nonsense"),
        (lambda patch: patch.delattr("wandb.Table"), "Table"),
        (lambda patch: patch.delattr("wandb.Artifact"), "Artifact"),
    ],
)
def test_tracking_that_fails_is_one_warning(
    tmp_path: Path, spoil: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(monkeypatch)
    assert start_stage(tmp_path, (0, 1)) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "run.tracking: nothing more" in line]
    assert len(warnings) == 1
    assert said in warnings[0]
    assert [line["update"] for line in read_metrics(tmp_path / "r" / "s" / "metrics.jsonl")[:2]] == [0, 1]


def test_wandb_is_loaded_if_it_is_asked_for_and_then_it_must_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails
    assert start_stage(tmp_path, (0,), "run.tracking=none") == 0
    assert "run.tracking" not in capsys.readouterr().err
    assert start_stage(tmp_path, (0,)) == 2
    assert "'.[tracking]', or run.tracking=none" in capsys.readouterr().err
