"""A stage that is complete: what another start does with it, and what it refuses."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.runs import MAIN_CHAIN

ROOT = Path(__file__).parents[2]


def said_without_torch(chain: Any, *options: str) -> str:
    """Starts every stage in a fresh process, which must load nothing heavy; returns what they print."""
    code = (
        "import importlib, sys\n"
        "from pipeline.runner import run_stage\n"
        "from stages.settings import Config\n"
        f"for name in {MAIN_CHAIN!r}:\n"
        "    stage = importlib.import_module(f'stages.{name}').STAGE\n"
        "    assert run_stage(stage, Config, sys.argv[1:]) == 0, name\n"
        "    heavy = {'torch', 'transformers', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "    assert not heavy, (name, heavy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, chain.config, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_stage_is_up_to_date_without_torch_and_nothing_is_written(chain):
    before = chain.snapshot()
    said = [line.split(" (")[0] for line in said_without_torch(chain).splitlines()[::2]]
    assert said == [f"{name}: up to date" for name in MAIN_CHAIN]
    assert chain.snapshot() == before


def test_a_dry_run_plans_every_stage_without_torch_and_writes_nothing(chain):
    before = chain.snapshot()
    said = said_without_torch(chain, "--dry-run", "--fresh")
    for name in MAIN_CHAIN:
        assert f"{name}: would make" in said
    assert chain.snapshot() == before


def test_the_summary_of_an_unfinished_chain_says_what_to_run(chain, tmp_path, capsys):
    lab = chain.copy(tmp_path / "lab", *MAIN_CHAIN[:3])
    assert lab.start("summary") == 3
    assert "Run: make labels" in capsys.readouterr().err
    assert not (lab.run_dir / "summary.json").exists()


def test_a_setting_that_an_input_was_made_with_must_be_the_same(chain, tmp_path, capsys):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    assert lab.start("labels", "sampling.max_response_tokens=128") == 3
    error = capsys.readouterr().err
    assert "sampling.max_response_tokens = 128, but rollouts was made with 256" in error
    assert lab.start("labels", "run.seed=1") == 3
    assert "run.seed = 1, but tasks was made with 0" in capsys.readouterr().err
    assert not (lab.run_dir / "labels" / "plan.json").exists()


def test_the_time_of_a_killed_start_is_counted_up_to_its_last_trace(empty):
    killed = empty.run_dir / "tasks" / "logs" / "start_000"
    killed.mkdir(parents=True)
    for name, seconds_ago in (("config.yaml", 500.0), ("stage.log", 440.0)):
        (killed / name).touch()
        os.utime(killed / name, (time.time() - seconds_ago,) * 2)
    assert empty.start("tasks") == 0
    assert empty.artifact("tasks").manifest["wall_seconds"] >= 60
