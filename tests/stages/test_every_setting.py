"""Every setting is read by some code, enters the keys that it should, and is known to `vdapo settings`."""

import ast
import importlib
import json
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from critics.drift.state import DriftRules
from critics.fit.schedule import FitSettings
from env.feedback.server import ServerOptions
from env.phone.tasks import generate_tasks
from pipeline.artifacts.start import identity_of
from pipeline.credit import MODES, LossOptions
from pipeline.engines.vllm import VllmOptions
from pipeline.runs import ROUND_CHAIN
from pipeline.settings import known_keys
from stages.command import main
from stages.settings import Config
from stages.wiring.list_settings import settings_of

ROOT = Path(__file__).parents[2]
PHONE = Config.specialised({})
ROWS = {row["setting"]: row for row in settings_of(PHONE())}
OTHERS: dict[str, Any] = {
    "tasks.level_shares": {1: 1.0},
    "sft.shares": {"oracle": 1.0},
    "run.held_out": ["val"],
    "run.name": "another",
    "prompt.style": "full",
    "feedback.url": "http://127.0.0.1:8001/v1",
    "feedback.stop_token_ids": [2],
    "comparison.arms": {"v_dapo": {}},
    "comparison.seeds": [3],
    "round.changes": {"stored.max_epochs": 2},
}
RUNNER = "pipeline/runner.py"
OPTIONAL = ("preferences", "dpo", "comparison")
NO_STAGE = {"run.name", "round.changes"}
"""Where a run lies decides nothing of what is made; what rounds change, other settings do."""


def others(row: dict[str, Any]) -> Iterator[Any]:
    """Yields values that a setting might have besides its own; some are not allowed."""
    key, value = row["setting"], row["value"]
    if key in OTHERS:
        yield OTHERS[key]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value / 2, value * 2, value - 1)
    else:
        yield from (word for word in row["allowed"].split(", ") if word != value)
        yield from (3, 0.5, "another")


def changed(row: dict[str, Any]) -> tuple[Config, Config]:
    """Returns two configurations that differ in one setting alone, of the kind that has it."""
    *parents, leaf = row["setting"].split(".")
    for other in others(row):
        made = []
        for value in (row["value"], other):
            data: dict[str, Any] = {
                "sft": {"base": "a model"},  # which every backend can train on
                "engine": {"kind": "transformers"},
                "training": {"backend": "torch"},
                "stored": {"objective": {"kind": "none"}},
                "actor": {"credit": {"mode": "v_dapo"}},
            }
            if row["setting"] == "critic_report.guided":  # else its actor wants an audit after feedback
                data["actor"]["chain"] = {"num_attempts": 1}
            here = data
            for name in parents:
                here = here.setdefault(name, {})
            if row["of"]:
                kind, _, member = row["of"].partition(" = ")
                here[kind] = member
            here[leaf] = value
            try:
                made.append(PHONE.model_validate(data))
            except ValidationError:
                break
        if len(made) == 2 and made[0] != made[1]:
            return made[0], made[1]
    raise AssertionError(f"no other value of {row['setting']} is allowed")


def keys_of(config: Config) -> dict[str, str]:
    stages = {name: importlib.import_module(f"stages.{name}").STAGE for name in (*ROUND_CHAIN, *OPTIONAL)}
    return {name: identity_of(stage, config, {})[0]["stage_key"] for name, stage in stages.items()}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_decides_the_content_enters_a_stage_key_and_nothing_else_does(row: dict[str, Any]) -> None:
    if row["setting"] == "tasks.environment":
        pytest.skip("another environment brings another section")
    before, after = map(keys_of, changed(row))
    moved = {name for name in before if before[name] != after[name]}
    decides = row["decides"] == "what" and row["setting"] not in NO_STAGE
    assert bool(moved) == decides, moved


@cache
def names_read() -> frozenset[str]:
    """Returns every attribute that stages and their runner read, and options that get a section whole."""
    found = {
        node.attr
        for path in (*(ROOT / "stages").rglob("*.py"), *(ROOT / "env").rglob("offer.py"), ROOT / RUNNER)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for options in (
        VllmOptions,
        ServerOptions,
        FitSettings,
        DriftRules,
        LossOptions,
        *map(type, MODES.values()),
    ):
        found |= {field.name for field in fields(options)}
    return frozenset(found | set(signature(generate_tasks).parameters) | {"overlong_factor"})


@pytest.mark.parametrize("key", ROWS)
def test_every_setting_is_read_by_some_code(key: str) -> None:
    assert key.rpartition(".")[2] in names_read()


def test_a_setting_that_nobody_reads_would_be_found() -> None:
    assert not {"anchors", "rank_weight", "handoff", "tasks_per_shard"} & names_read()


def test_there_are_at_most_157_settings_and_the_command_shows_them_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["settings", str(ROOT / "configs" / "demo.yaml"), "engine.max_live=7", "--json"]) == 0
    shown = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    keys = list(known_keys(PHONE))
    leaves = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]
    assert set(shown) == set(leaves)
    assert len(leaves) <= 157
    assert (shown["engine.max_live"]["value"], shown["engine.max_live"]["default"]) == (7, 256)
    assert shown["engine.tensor_parallel"]["of"] == "kind = vllm"
    assert all(row["meaning"] and row["allowed"] for row in shown.values())


def test_the_command_cuts_nothing_and_can_leave_out_the_advanced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["settings"]) == 0
    printed = capsys.readouterr().out
    assert "actor.credit.clip_high" in printed
    assert "2503.14476" in printed
    assert "…" not in printed
    assert all(f"{setting} = " in printed for setting in ROWS)
    assert main(["settings", "--basic"]) == 0
    assert "actor.credit.clip_high" not in capsys.readouterr().out
