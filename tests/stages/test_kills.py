"""SIGKILL at any moment, then the same command: it finishes, and the result is an undisturbed run's."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from pipeline.config import load_config
from pipeline.errors import ArtifactError
from pipeline.runs import MAIN_CHAIN
from stages.command import main
from stages.settings import Config
from stages.wiring.rounds import play_round
from tests.pipeline.test_kill_sweep import facts
from tests.stages.conftest import Lab
from tests.stages.test_rounds import finish, lab_of

ROOT = Path(__file__).parents[2]
SCRIPTED = "engine.kind=scripted"


class Forks:
    """Starts of stages, each in a process of its own, forked from one that has torch loaded."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forks.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
        )

    def __call__(
        self, lab: Lab, stage: str, *environments: dict[str, str], options: Any = (), kill_after: Any = None
    ) -> list[int]:
        """Returns the exit code or minus the signal of a start in each environment, one after the other."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        codes = []
        for environment in environments:
            case = environment, stage, [lab.config, *options], kill_after
            self.server.stdin.write(json.dumps(case) + "\n")
            self.server.stdin.flush()
            code, self.seconds = json.loads(self.server.stdout.readline())
            codes.append(code)
        return codes

    def close(self) -> None:
        self.server.communicate(timeout=60)


@pytest.fixture(scope="session")
def forks():
    server = Forks()
    yield server
    server.close()


def kill_at(point: str) -> dict[str, str]:
    return {"VDAPO_FAILPOINTS": f"{point}=kill"}


WHOLE: dict[str, str] = {}
"""The environment of a start that nothing kills."""


def log_of(lab: Lab) -> dict[str, str]:
    return {"VDAPO_FAILPOINTS_LOG": str(lab.folder / "points.log")}


def passed(lab: Lab) -> Counter[str]:
    """Returns how often each point was passed while `log_of` was on."""
    return Counter((lab.folder / "points.log").read_text().split())


@pytest.fixture(scope="session")
def undisturbed(chain, forks, tmp_path_factory):
    """Scripted rollouts that nothing disturbed: facts, points passed, seconds taken."""
    lab = chain.copy(tmp_path_factory.mktemp("scripted"), "tasks", "sft")
    assert forks(lab, "rollouts", log_of(lab), options=[SCRIPTED]) == [0]
    return {"facts": facts(lab.run_dir / "rollouts"), "points": passed(lab), "seconds": forks.seconds}


def test_committed_shards_are_not_made_again(chain, forks, undisturbed, tmp_path):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    assert forks(lab, "rollouts", kill_at("rollouts.shard.after_ledger:2"), options=[SCRIPTED]) == [-9]
    committed = {n: f for n, f in lab.snapshot().items() if "/shards/" in n or "/_ledger/" in n}
    assert sum("/shards/" in name for name in committed) == 4  # two tables of two shards
    assert len(committed) > 4
    again = log_of(lab) | kill_at("rollouts.merge.before:1")
    assert forks(lab, "rollouts", again, options=[SCRIPTED]) == [-9]
    assert {n: f for n, f in lab.snapshot().items() if n in committed} == committed
    point = "rollouts.shard.before_write"
    assert passed(lab)[point] == undisturbed["points"][point] - 2
    assert lab.start("rollouts", SCRIPTED) == 0
    assert facts(lab.run_dir / "rollouts") == undisturbed["facts"]
    bare, guided = ([r.reward for r in lab.rollouts("rollouts") if r.guided is on] for on in (False, True))
    assert 0 < np.mean(bare) < np.mean(guided) < 1  # neither all good nor all bad


@pytest.mark.parametrize("seed", [0, 1])
def test_random_kills_of_scripted_rollouts_change_nothing(chain, forks, undisturbed, tmp_path, seed):
    rng = random.Random(seed)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    for _ in range(4):
        moment = rng.uniform(0, undisturbed["seconds"])
        assert forks(lab, "rollouts", WHOLE, options=[SCRIPTED], kill_after=moment)[0] in (0, -9)
    assert forks(lab, "rollouts", WHOLE, options=[SCRIPTED]) == [0]
    assert facts(lab.run_dir / "rollouts") == undisturbed["facts"]


@pytest.mark.parametrize(
    ("stage", "points"),
    [
        # Batch shape changes the last bits of a model's numbers, so an open shard is played again whole.
        ("rollouts", ["rollouts.item_done:23", "rollouts.merge.before:1"]),
        pytest.param(
            "sft",
            ["sft.update.after:70", "sft.checkpoint.mid:1", "sft.merge.before:1"],
            marks=pytest.mark.slow,
        ),
        ("critic", ["critic.update.after:4", "critic.merge.before:1", "critic.report_written:1"]),
        pytest.param(
            "actor",
            ["actor.update.before:2", "actor.shard.after_ledger:1", "actor.merge.before:1"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_killed_stage_goes_on_to_the_same_rollouts_and_weights(chain, forks, tmp_path, stage, points):
    """The last kills come after the last update and shard, so the last start only exports."""
    lab = chain.copy(tmp_path / "lab", *MAIN_CHAIN[: MAIN_CHAIN.index(stage)])
    killed = [*points, f"{stage}.manifest.published:1"]
    assert forks(lab, stage, *map(kill_at, killed[:-1])) == [-9] * len(points)
    assert forks(lab, stage, log_of(lab) | kill_at(killed[-1]), WHOLE) == [-9, 0]
    assert not {f"{stage}.update.before", f"{stage}.shard.before_write"} & set(passed(lab))
    assert not list((lab.run_dir / stage).glob("_evaluations*"))
    assert facts(lab.run_dir / stage) == facts(chain.run_dir / stage)
    if stage == "actor":  # an iteration that an earlier start sampled took that start's time, too
        ends = [line for line in read_metrics(lab.run_dir / stage / "metrics.jsonl") if "seconds" in line]
        sampled = {index: shard.seconds for index, shard in ledger.read(lab.run_dir / stage)[0].items()}
        assert all(line["seconds"] >= sampled[line["iteration"]] > 0 for line in ends)
        assert len(ends) == len(sampled)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "stage",
    [pytest.param("replay", marks=pytest.mark.slow), pytest.param("promotion", marks=pytest.mark.soak)],
)
def test_a_kill_at_every_point_of_a_stage_of_a_round_changes_no_table_and_no_verdict(
    chain, forks, tmp_path, stage
):
    lab = lab_of(chain, tmp_path / "lab")

    def up_to_it(name: str, file: Path) -> int:
        return 75 if name == stage else finish(name, file)

    with pytest.raises(ArtifactError):
        play_round(load_config(Config, Path(lab.config)), finish=up_to_it)
    run, folder = Lab(tmp_path), lab.run_dir / "rounds" / "001" / stage
    (tmp_path / "tiny.yaml").write_text((lab.run_dir / "rounds" / "001.yaml").read_text())
    assert forks(run, stage, log_of(run)) == [0]
    whole, hits = facts(folder), passed(run)
    assert len(hits) >= 9
    rng = random.Random(stage)
    for point, number in sorted(hits.items()):
        killed = kill_at(f"{point}:{rng.randint(1, number)}")
        assert forks(run, stage, killed, options=["--fresh"]) == [-9], point
        assert forks(run, stage, WHOLE) == [0], point
        assert facts(folder) == whole, point


SMALLER = {
    "sft": ("sft.num_updates=6", "sft.checkpoint_every=2", "sft.num_demonstrations=32"),
    "critic_report": ("critic_report.tasks_per_split=2",),
    "stored": ("stored.objective.kind=likelihood", "stored.batch_rows=16", "stored.max_epochs=2"),
    "evaluation": ("run.held_out=[val]",),
    "dpo": ("dpo.batch_pairs=4", "dpo.learning_rate=5e-4", "dpo.max_epochs=2"),
}
"""Settings under which a stage still passes each of its points at least twice."""


PREFERENCES = ("preferences", "dpo")
"""Stages beside the main chain."""
SWEPT = ("rollouts",)
"""Stages that `make test-all` sweeps; `make soak` sweeps all others."""


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(s, marks=pytest.mark.slow if s in SWEPT else pytest.mark.soak)
        for s in (*MAIN_CHAIN, *PREFERENCES)
    ],
)
def test_a_kill_at_every_point_of_every_stage_changes_nothing(chain, forks, tmp_path, stage):
    """One kill per named point, at a random one of its passages."""
    smaller, source = SMALLER.get(stage, ()), chain
    inputs = MAIN_CHAIN[: MAIN_CHAIN.index("labels" if stage in PREFERENCES else stage)]
    if stage == "dpo":
        source, inputs = chain.copy(tmp_path / "source", *inputs), (*inputs, "preferences")
        assert forks(source, "preferences", WHOLE) == [0]
    sweep(forks, tmp_path, source, stage, inputs, smaller)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_kill_at_every_point_of_a_stored_phase_without_an_objective_changes_nothing(chain, forks, tmp_path):
    """As by default: nothing is trained, and what is skipped is committed once."""
    sweep(forks, tmp_path, chain, "stored", MAIN_CHAIN[: MAIN_CHAIN.index("stored")])


def sweep(forks, tmp_path, source, stage, inputs, options=()):
    """Kills a stage once at each named point, at a random one of its passages, and lets it go on."""
    whole = source.copy(tmp_path / "whole", *inputs)
    assert forks(whole, stage, log_of(whole), options=options) == [0]
    hits = passed(whole)
    assert len(hits) >= 10
    rng = random.Random(stage)
    for index, (point, number) in enumerate(sorted(hits.items())):
        lab = source.copy(tmp_path / str(index), *inputs)
        killed = kill_at(f"{point}:{rng.randint(1, number)}")
        code, next_code = forks(lab, stage, killed, WHOLE, options=options)
        # A killed worker is replaced. Where each new one dies too, the stage stops.
        assert code in ((-9,) if point.startswith(f"{stage}.") else (0, 75)), point
        assert next_code == 0, point
        assert facts(lab.run_dir / stage) == facts(whole.run_dir / stage), point


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_kill_at_every_point_of_an_import_of_sessions_changes_nothing(chain, forks, tmp_path):
    source = chain.copy(tmp_path / "source", "tasks", "sft", "rollouts")
    assert main(["export", str(source.run_dir), "--to", "sessions", str(tmp_path / "exported")]) == 0
    recorded = f"rollouts.solutions={tmp_path / 'exported' / 'sessions.jsonl'}"
    options = ("rollouts.num_tasks=0", "run.rollouts_per_shard=16", recorded)
    sweep(forks, tmp_path, chain, "rollouts", ("tasks", "sft"), options)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_a_kill_at_every_point_of_learning_from_corrections_changes_nothing(chain, forks, tmp_path):
    def ask(answer: int, told: str) -> list[dict[str, Any]]:
        call = {"function": {"name": "get_feedback", "arguments": {"current_answer": str(answer)}}}
        said = {"role": "assistant", "content": f"I get {answer}.", "tool_calls": [call]}
        return [said, {"role": "tool", "content": told}]

    def session(number: int, calls: int) -> dict[str, Any]:
        asked = [m for at in range(calls) for m in ask(number + at, "The sum is wrong.")]
        opening = {"role": "user", "content": f"{number} + 7?"}
        return {"messages": [opening, *asked, {"role": "assistant", "content": f"It is {number + 7}."}]}

    file = tmp_path / "sessions.jsonl"
    file.write_text("".join(json.dumps(session(number, number % 4)) + "\n" for number in range(16)))
    options = (f"sft.data={{source: {file}}}", "prompt.style=full", "sft.checkpoint_every=2")
    options = (*options, "sft.num_updates=6", "sft.batch_rows=4")
    sweep(forks, tmp_path, chain, "sft", ("tasks",), options)
    report = Artifact.open(tmp_path / "whole" / chain.run_dir.name, "sft").report["data"]
    assert report["by_calls"] == {"0": 4, "1": 4, "2": 4, "3": 4}
    assert report["wrong_attempts"] == 4 * (1 + 2 + 3)
