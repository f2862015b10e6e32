"""SIGKILL at any moment, then the same command: it finishes, and the result is an undisturbed run's."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.runs import MAIN_CHAIN

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

    def __call__(self, *cases: tuple[dict[str, str], str, list[str], float | None]) -> list[list[Any]]:
        """Returns [exit code or minus the signal, seconds] of each start, one after the other."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        answers = []
        for case in cases:
            self.server.stdin.write(json.dumps(case) + "\n")
            self.server.stdin.flush()
            answers.append(json.loads(self.server.stdout.readline()))
        return answers

    def close(self) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait(timeout=60)
        self.server.stdout.close()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    server = Forks()
    yield server
    server.close()


def kill_at(point: str) -> dict[str, str]:
    return {"VDAPO_FAILPOINTS": f"{point}=kill"}


def facts(stage: Path) -> dict[str, Any]:
    """What must be equal however often a stage was stopped: rows, bytes, digests, and no litter."""
    manifest = json.loads((stage / "manifest.json").read_text())
    return {
        "content": manifest["content_digest"],
        "counts": manifest["counts"],
        "tables": manifest["tables"],
        "files": {f["path"]: f["sha256"] for f in manifest["files"] if f["kind"] != "volatile"},
        "litter": sorted(
            str(p.relative_to(stage))
            for p in stage.rglob("*")
            if ".tmp" in p.name or p.name.startswith("part-")
        ),
    }


@pytest.fixture(scope="session")
def undisturbed(chain: Any, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Scripted rollouts that nothing disturbed: facts, points passed, seconds taken."""
    lab = chain.copy(tmp_path_factory.mktemp("scripted"), "tasks", "sft")
    log = lab.folder / "points.log"
    [[code, seconds]] = forks(({"VDAPO_FAILPOINTS_LOG": str(log)}, "rollouts", [lab.config, SCRIPTED], None))
    assert code == 0
    return {
        "facts": facts(lab.run_dir / "rollouts"),
        "points": Counter(log.read_text().split()),
        "seconds": seconds,
        "lab": lab,
    }


def test_scripted_rollouts_are_the_same_each_time_and_neither_all_good_nor_all_bad(
    chain: Any, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    assert lab.start("rollouts", SCRIPTED) == 0
    assert facts(lab.run_dir / "rollouts") == undisturbed["facts"]
    rollouts = lab.rollouts("rollouts")
    success = {
        guided: sum(r.reward for r in rollouts if r.guided is guided)
        / sum(r.guided is guided for r in rollouts)
        for guided in (False, True)
    }
    assert 0 < success[False] < success[True] < 1
    assert {r.policy_digest for r in rollouts} != {r.policy_digest for r in chain.rollouts("rollouts")}


def test_committed_shards_are_not_made_again(
    chain: Any, forks: Forks, undisturbed: Any, tmp_path: Path
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    stage = lab.run_dir / "rollouts"
    argv = [lab.config, SCRIPTED]
    assert forks((kill_at("rollouts.shard.after_ledger:2"), "rollouts", argv, None))[0][0] == -9
    committed = {n: f for n, f in lab.snapshot().items() if "/shards/" in n or "/_ledger/" in n}
    assert sum("/shards/" in name for name in committed) == 4  # two tables of two shards
    assert len(committed) > 4
    log = lab.folder / "points.log"
    again = {"VDAPO_FAILPOINTS_LOG": str(log), **kill_at("rollouts.merge.before:1")}
    assert forks((again, "rollouts", argv, None))[0][0] == -9
    assert {n: f for n, f in lab.snapshot().items() if n in committed} == committed
    made = Counter(log.read_text().split())["rollouts.shard.before_write"]
    assert made == undisturbed["points"]["rollouts.shard.before_write"] - 2
    assert lab.start("rollouts", SCRIPTED) == 0
    assert facts(stage) == undisturbed["facts"]


@pytest.mark.parametrize("seed", [0, 1])
def test_random_kills_of_scripted_rollouts_change_nothing(
    chain: Any, forks: Forks, undisturbed: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    argv = [lab.config, SCRIPTED]
    moments = [rng.uniform(0, undisturbed["seconds"]) for _ in range(4)]
    codes = [code for code, _ in forks(*(({}, "rollouts", argv, moment) for moment in moments))]
    assert set(codes) <= {0, -9}
    assert forks(({}, "rollouts", argv, None))[0][0] == 0
    assert facts(lab.run_dir / "rollouts") == undisturbed["facts"]


def test_a_kill_within_a_shard_of_model_rollouts_changes_nothing(
    chain: Any, forks: Forks, tmp_path: Path
) -> None:
    """Batch shape changes the last bits of a model's numbers, so an open shard is played again whole."""
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    argv = [lab.config]
    number = random.Random(0).randint(15, 40)
    codes = [
        code
        for code, _ in forks(
            (kill_at(f"rollouts.item_done:{number}"), "rollouts", argv, None), ({}, "rollouts", argv, None)
        )
    ]
    assert codes == [-9, 0]
    assert facts(lab.run_dir / "rollouts") == facts(chain.run_dir / "rollouts")


@pytest.mark.parametrize(
    ("stage", "inputs", "points"),
    [
        ("sft", MAIN_CHAIN[:1], ["sft.update.after:70", "sft.checkpoint.mid:1"]),
        ("critic", MAIN_CHAIN[:4], ["critic.update.after:4"]),
        ("actor", MAIN_CHAIN[:6], ["actor.update.before:2", "actor.shard.after_ledger:1"]),
    ],
)
def test_training_goes_on_from_its_checkpoint_to_the_same_weights(
    chain: Any, forks: Forks, tmp_path: Path, stage: str, inputs: tuple[str, ...], points: list[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", *inputs)
    argv = [lab.config]
    codes = [
        code for code, _ in forks(*((kill_at(p), stage, argv, None) for p in points), ({}, stage, argv, None))
    ]
    assert codes == [-9] * len(points) + [0]
    assert facts(lab.run_dir / stage) == facts(chain.run_dir / stage)


def test_a_critic_killed_around_its_end_keeps_no_weights_of_other_evaluations(
    chain: Any, forks: Forks, tmp_path: Path
) -> None:
    lab = chain.copy(tmp_path / "lab", *MAIN_CHAIN[:4])
    argv = [lab.config]
    points = ["critic.merge.before:1", "critic.report_written:1", "critic.manifest.published:1"]
    codes = [code for code, _ in forks(*((kill_at(p), "critic", argv, None) for p in points))]
    assert codes == [-9] * len(points)
    assert lab.start("critic") == 0  # it was complete when the last kill came
    stage = lab.run_dir / "critic"
    assert not list(stage.glob("_evaluations*"))
    assert facts(stage) == facts(chain.run_dir / "critic")


def test_training_after_the_last_checkpoint_only_exports(chain: Any, forks: Forks, tmp_path: Path) -> None:
    lab = chain.copy(tmp_path / "lab", *MAIN_CHAIN[:6])
    log = lab.folder / "points.log"
    again = {"VDAPO_FAILPOINTS_LOG": str(log)}
    argv = [lab.config]
    codes = forks((kill_at("actor.merge.before:1"), "actor", argv, None), (again, "actor", argv, None))
    assert [code for code, _ in codes] == [-9, 0]
    assert not Counter(log.read_text().split())["actor.update.before"]
    assert facts(lab.run_dir / "actor") == facts(chain.run_dir / "actor")


SMALLER = {
    "sft": ("sft.num_updates=6", "sft.checkpoint_every=2", "sft.num_demonstrations=32"),
    "critic_report": ("critic_report.tasks_per_split=2",),
    "evaluation": ("run.held_out=[val]",),
}
"""Settings under which a stage still passes each of its points at least twice."""


SWEPT = ("rollouts", "actor")
"""Stages that `make test-all` sweeps: one of shards, one of checkpoints; `make soak` sweeps all."""


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "stage",
    [pytest.param(s, marks=pytest.mark.slow if s in SWEPT else pytest.mark.soak) for s in MAIN_CHAIN],
)
def test_a_kill_at_every_point_of_every_stage_changes_nothing(
    chain: Any, forks: Forks, tmp_path: Path, stage: str
) -> None:
    """One kill per named point, at a random one of its passages."""
    inputs, smaller = MAIN_CHAIN[: MAIN_CHAIN.index(stage)], SMALLER.get(stage, ())
    lab = chain.copy(tmp_path / "whole", *inputs)
    log = lab.folder / "points.log"
    whole = ({"VDAPO_FAILPOINTS_LOG": str(log)}, stage, [lab.config, *smaller], None)
    assert forks(whole)[0][0] == 0
    expected = facts(lab.run_dir / stage)
    hits = Counter(log.read_text().split())
    assert len(hits) >= 10
    rng = random.Random(stage)
    cases, labs = [], []
    for index, (point, number) in enumerate(sorted(hits.items())):
        labs.append(chain.copy(tmp_path / str(index), *inputs))
        argv = [labs[-1].config, *smaller]
        cases += [(kill_at(f"{point}:{rng.randint(1, number)}"), stage, argv, None), ({}, stage, argv, None)]
    codes = [code for code, _ in forks(*cases)]
    for index, point in enumerate(sorted(hits)):
        assert codes[2 * index : 2 * index + 2] == [-9, 0], point
        assert facts(labs[index].run_dir / stage) == expected, point


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("stage", ["rollouts", "labels", "evaluation"])
def test_many_random_kills_of_model_stages_change_nothing(
    chain: Any, forks: Forks, tmp_path: Path, stage: str
) -> None:
    inputs = MAIN_CHAIN[: MAIN_CHAIN.index(stage)]
    lab = chain.copy(tmp_path / "whole", *inputs)
    [[code, seconds]] = forks(({}, stage, [lab.config], None))
    assert code == 0
    rng = random.Random(stage)
    for attempt in range(5):
        lab = chain.copy(tmp_path / str(attempt), *inputs)
        moments = [rng.uniform(0, seconds) for _ in range(5)]
        codes = [c for c, _ in forks(*(({}, stage, [lab.config], moment) for moment in moments))]
        assert set(codes) <= {0, -9}
        assert forks(({}, stage, [lab.config], None))[0][0] == 0
        assert facts(lab.run_dir / stage) == facts(chain.run_dir / stage)
