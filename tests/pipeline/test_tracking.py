"""The real wandb, offline: one run for all starts of a stage; whatever happens to it, the stage goes on."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.artifacts import tracking
from pipeline.artifacts.metrics import read_metrics
from pipeline.artifacts.runner import Start, run_stage
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


def records(path: Path) -> Iterator[Any]:
    """Yields the records of a wandb file: a LevelDB log of blocks of 32 kB behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def history(path: Path) -> list[dict[str, Any]]:
    lines = [record.history for record in records(path) if record.HasField("history")]
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in line.item}
        for line in lines
    ]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)


def test_all_starts_of_a_stage_are_one_offline_run_with_metrics_samples_and_report(tmp_path: Path) -> None:
    assert start_stage(tmp_path, (0, 1), ends=False) == 1
    assert start_stage(tmp_path, (1, 2)) == 0
    logs = tmp_path / "r" / "s" / "logs"
    files = sorted(logs.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    run_id = (logs / "wandb_id").read_text()
    assert {path.name for path in files} == {f"run-{run_id}.wandb"}
    first, second = (history(path) for path in files)
    losses = [line for line in first + second if "loss" in line]
    assert [line["update"] for line in losses] == [0, 1, 1, 2]
    assert [line["loss"] for line in losses[:3]] == [1.0, 0.5, 0.5]
    assert str(losses[3]["loss"]).lower() == "nan"
    [measured] = [line for line in second if "val" in line]
    assert (measured["update"], measured["val"]) == (2, 0.25)
    [table_file] = files[0].parent.rglob("*.table.json")
    table = json.loads(table_file.read_text())
    assert table["columns"] == list(tracking.COLUMNS)
    assert table["data"] == [[0, "t", 1, 0, 0.5, 'user: hello\nassistant:  [{"name": "dial"}]']] * 4
    artifacts = [record.request.log_artifact.artifact for record in records(files[1])] + [
        record.artifact for record in records(files[1])
    ]
    [report] = [artifact for artifact in artifacts if artifact.type == "report"]
    assert report.name == "r-s"
    assert {entry.path for entry in report.manifest.contents} == {"report.json", "gate.json"}
    assert len(read_metrics(tmp_path / "r" / "s" / "metrics.jsonl")) > 0


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
