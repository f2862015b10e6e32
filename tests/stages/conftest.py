"""One tiny chain, made once: a 60-thousand-parameter policy learns a handful of companies by heart."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.signals import StopFlag
from pipeline.artifacts.start import identity_of
from pipeline.config import load_config
from pipeline.runner import Start, run_stage
from pipeline.runs import MAIN_CHAIN
from pipeline.tables import rollouts_from, tasks_from
from pipeline.types import Rollout, Task
from stages.settings import Config

TINY = """
run: {name: r, rollouts_per_shard: 16}
engine: {max_live: 64, replicas: 1}
training: {threads: 1, micro_batch_tokens: 4096}
tasks: {num_companies: 12, num_train: 24, num_held_out: 8, level_shares: {1: 1.0}}
sft:
  model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}
  shares: {oracle: 0.3, over_collector: 0.5, noisy_adaptive: 0.2}
  num_demonstrations: 192
  num_updates: 150
  batch_rows: 16
  learning_rate: 1.0e-2
  checkpoint_every: 32
sampling: {max_response_tokens: 256}
prompt: {max_feedback_tokens: 200}
rollouts:
  chain: {num_attempts: 2, draws: 1, feedback_free_share: 0.25, feedback_free_draws: 4}
labels: {target: soft, kappa: 2, max_states: 24, num_continuations: 2}
critic: {fit_share: 0.5, validate_share: 0.25, fit_continuations: false, head_updates: 2,
         head_learning_rate: 1.0e-3, learning_rate: 5.0e-4, max_epochs: 2, batch_states: 64,
         evaluations_per_epoch: 2}
critic_report: {tasks_per_split: 8, draws: 2, num_continuations: 2,
                fit_tasks: 4, sibling_sets: 4, probe_rollouts: 8}
actor: {num_iterations: 2, tasks_per_update: 4, updates_per_iteration: 2, max_refills: 1,
        learning_rate: 3.0e-4, credit: {on_weak_critic: allow},
        chain: {num_attempts: 2, draws: 2, feedback_free_share: 0.5, feedback_free_draws: 4},
        checkpoint_every: 1, evaluate_tasks: 4}
evaluation: {draws: 1}
"""


CRITIC = MAIN_CHAIN[: MAIN_CHAIN.index("actor")]
"""All that an actor with a critic needs."""


@dataclass(frozen=True)
class Lab:
    """A folder with one run, and the command lines that work on it."""

    folder: Path

    @property
    def run_dir(self) -> Path:
        return self.folder / "r"

    @property
    def config(self) -> str:
        return str(self.folder / "tiny.yaml")

    def start(self, stage: str, *argv: str) -> int:
        """Runs a stage as its command line does; returns the exit code."""
        module = importlib.import_module(f"stages.{stage}")
        if stage == "summary":
            return int(module.main([self.config, *argv]))
        return run_stage(module.STAGE, Config, [self.config, *argv])

    def begun(self, stage: str, *overrides: str) -> Start[Any]:
        """Returns what a plan is given; nothing is written."""
        declared = importlib.import_module(f"stages.{stage}").STAGE
        config: Any = load_config(Config, Path(self.config), overrides)
        inputs = {name: self.artifact(name) for name in declared.inputs(config)}
        identity, runtime = identity_of(declared, config, inputs)
        return Start(
            config=config,
            run_dir=self.run_dir,
            identity=identity,
            inputs=inputs,
            number=0,
            stop=StopFlag(),
            console=Console(stderr=True),
            runtime_settings=runtime,
        )

    def plan(self, stage: str, *overrides: str) -> Any:
        """Returns what a stage would make, or raises what it refuses to begin with."""
        declared = importlib.import_module(f"stages.{stage}").STAGE
        return declared.plan(self.begun(stage, *overrides))

    def artifact(self, stage: str) -> Artifact:
        return Artifact.open(self.run_dir, stage)

    def rollouts(self, stage: str) -> list[Rollout]:
        artifact = self.artifact(stage)
        return rollouts_from(artifact.table("rollouts"), artifact.table("steps"))

    def played(self, stage: str) -> tuple[Any, ...]:
        """Returns the tables of a stage's rollouts and steps, and its counts."""
        artifact = self.artifact(stage)
        return artifact.table("rollouts"), artifact.table("steps"), artifact.manifest["counts"]

    def checkpoints(self, stage: str) -> list[dict[str, Any]]:
        """Returns the states that a stage's checkpoints hold."""
        commits = (self.run_dir / stage / "checkpoints").glob("*/commit.json")
        return [json.loads(commit.read_text())["state"] for commit in commits]

    def tasks(self) -> dict[str, Task]:
        return {task.task_id: task for task in tasks_from(self.artifact("tasks").table("tasks"))}

    def copy(self, folder: Path, *stages: str) -> Lab:
        """Returns another folder with copies of these stages."""
        lab = make_lab(folder)
        for stage in stages:
            shutil.copytree(self.run_dir / stage, lab.run_dir / stage)
        return lab

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Returns file -> (inode, time of last change), by which any writing shows."""
        paths = [path for path in self.run_dir.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(self.folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in paths
        }


def make_lab(folder: Path, text: str = TINY) -> Lab:
    settings = yaml.safe_load(text)
    settings["run"]["data_dir"] = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    return Lab(folder)


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The whole chain, complete; read only. Copy what a test changes. All workers share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(shared / "chain.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lab = Lab(shared / "chain")
        if not (shared / "chain.made").exists():
            make_lab(lab.folder)
            for stage in (*MAIN_CHAIN, "summary"):
                assert lab.start(stage) == 0, stage
            (shared / "chain.made").touch()
    return lab


@pytest.fixture
def empty(tmp_path: Path) -> Lab:
    """A run without any stage."""
    return make_lab(tmp_path / "empty")
