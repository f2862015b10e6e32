"""A comparison: runs of the chain side by side, what they share made once, and what it comes to."""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import stages.wiring.side_by_side
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.signals import StopRequested
from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.runner import run_stage
from stages.command import main
from stages.settings import Config
from stages.wiring.arms import made_once, runs_of
from stages.wiring.side_by_side import SideBySide
from tests.stages.conftest import TINY, Lab, make_lab

ROOT = Path(__file__).parents[2]
ARMS = {
    "ours": {"actor.credit": {"mode": "imitation"}},
    "theirs": {"actor.credit": {"mode": "decoupled_clip"}, "actor.max_refills": 0},
}


def lab_of(folder: Path, base: Path | str, **comparison: Any) -> Lab:
    """Returns a run whose arms begin with a policy that is there, and train for one iteration."""
    settings = yaml.safe_load(TINY)
    settings["sft"] = {"base": str(base), "num_updates": 0}
    settings["actor"] |= {"num_iterations": 1, "credit": {"mode": "grpo"}}
    settings["comparison"] = {"arms": ARMS, "method": "ours", "seeds": [0, 1], "threshold": 0.9} | comparison
    return make_lab(folder, yaml.safe_dump(settings))


def add(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Stages of runs start in this process; returns what was started."""
    started: Counter[str] = Counter()

    def begin(stage: str, config: Path, log: Path) -> Any:
        started[f"{config.stem}/{stage}"] += 1
        with log.open("a") as file, redirect_stderr(file):
            code = run_stage(importlib.import_module(f"stages.{stage}").STAGE, Config, [str(config)])
        return SimpleNamespace(poll=lambda: code, returncode=code)

    monkeypatch.setattr(stages.wiring.side_by_side, "begin_stage", begin)
    monkeypatch.setattr(stages.wiring.side_by_side, "POLL_SECONDS", 0)
    return started


def test_two_arms_with_two_seeds_come_to_tables_a_report_and_a_page(
    chain: Lab, in_process: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = lab_of(tmp_path / "lab", chain.artifact("sft").path("policy"))
    assert lab.start("comparison") == 0
    runs = [f"{arm}-seed{seed}" for arm in ARMS for seed in (0, 1)]
    # What the arms of a seed share is made by the first one, and linked.
    assert sum(in_process.values()) == 8
    assert {name for name in in_process if name.endswith("actor")} == {f"{run}/actor" for run in runs}
    arms = lab.run_dir / "arms"
    for seed in (0, 1):
        first, second = (arms / f"{arm}-seed{seed}" / "tasks" / "tasks.parquet" for arm in ARMS)
        assert first.stat().st_ino == second.stat().st_ino
    assert main(["status", str(lab.run_dir)]) == 0
    assert main(["verify", str(lab.run_dir)]) == 0
    assert "arms/theirs-seed1/actor: complete and sound" in capsys.readouterr().out

    artifact = lab.artifact("comparison")
    rows, spending = (artifact.table(name).to_pylist() for name in ("comparison", "spending"))
    assert artifact.manifest["counts"] == {"planned": 4, "done": 4, "failed": {}, "skipped": {}}
    assert [(r["arm"], r["seed"], r["iteration"]) for r in rows if r["arm"] == "ours"] == [
        ("ours", seed, iteration) for seed in (0, 1) for iteration in (-1, 0, 1)
    ]
    for run in runs:
        actor = Artifact.open(arms / run, "actor")
        played, looked = actor.table("rollouts"), actor.table("looks").to_pylist()
        tokens = sum(map(sum, played["loss_mask"].to_pylist()))
        own = {r["iteration"]: r for r in rows if f"{r['arm']}-seed{r['seed']}" == run}
        assert (own[1]["rollouts"], own[1]["tokens"]) == (played.num_rows, tokens)
        assert own[0]["rollouts"] == own[-1]["rollouts"] == 0
        assert own[1]["rewards"] == [look["reward"] for look in looked if look["iteration"] == 1]
        assert own[0]["rewards"] == own[-1]["rewards"]
        assert own[1]["seconds"] > 0
        [spent] = [s for s in spending if f"{s['arm']}-seed{s['seed']}" == run]
        assert (spent["stage"], spent["tokens"]) == ("actor", tokens)
    report = artifact.report
    assert set(report["arms"]) == set(ARMS)
    assert [claim["against"] for claim in report["measures"]["rollouts"]["claims"]] == ["theirs"]
    assert (lab.run_dir / "comparison" / "report.html").read_text().startswith("<!doctype html>")

    in_process.clear()
    assert lab.start("comparison") == 0
    assert not in_process
    assert lab.start("comparison", "comparison.threshold=0.5") == 3
    assert lab.start("comparison", "comparison.threshold=0.5", "--fresh") == 0
    assert not in_process  # runs are there already


@pytest.mark.slow
def test_an_arm_that_starts_from_stored_rollouts_pays_for_them_before_its_first_look(
    chain: Lab, in_process: Counter[str], tmp_path: Path
) -> None:
    taught = {"stored.objective": {"kind": "likelihood"}, "stored.batch_rows": 16, "stored.max_epochs": 1}
    lab = lab_of(
        tmp_path / "lab",
        chain.artifact("sft").path("policy"),
        arms={"ours": ARMS["ours"], "stored": ARMS["ours"] | taught},
        seeds=[0],
    )
    assert lab.start("comparison") == 0
    artifact, run = lab.artifact("comparison"), lab.run_dir / "arms" / "stored-seed0"
    rows = {(row["arm"], row["iteration"]): row for row in artifact.table("comparison").to_pylist()}
    paid = sum(Artifact.open(run, stage).table("rollouts").num_rows for stage in ("rollouts", "labels"))
    own = Artifact.open(run, "actor").table("rollouts").num_rows
    for iteration, number in ((-1, 0), (0, paid), (1, paid + own)):
        row = rows["stored", iteration]
        assert row["rollouts"] == row["amortised_rollouts"] == number
    assert rows["ours", 0]["rollouts"] == 0
    assert rows["stored", -1]["rewards"] == rows["ours", 0]["rewards"]
    spending = {row["stage"]: row for row in artifact.table("spending").to_pylist() if row["arm"] == "stored"}
    assert set(spending) == {"rollouts", "labels", "stored", "actor"}
    assert spending["stored"]["rollouts"] == spending["stored"]["tokens"] == 0
    assert spending["stored"]["seconds"] > 0
    amortised = [spending[stage]["amortised_rollouts"] for stage in ("rollouts", "labels", "stored", "actor")]
    assert (sum(amortised[:2]), *amortised[2:]) == (paid, 0, own)


def test_an_arm_that_fails_stops_no_other_and_is_tried_again(
    chain: Lab, in_process: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    arms = ARMS | {"broken": ARMS["theirs"] | {"sft.base": str(base)}}
    lab = lab_of(tmp_path / "lab", chain.artifact("sft").path("policy"), arms=arms, seeds=[0])
    assert lab.start("comparison") == 5
    said = capsys.readouterr().err
    assert "planned 3 = done 2 + failed 1 (ended_with_3 1) + skipped 0" in said
    assert "broken-seed0: sft ended with 3: " in said
    assert f"make STAGE CONFIG={lab.run_dir / 'arms' / 'RUN.yaml'} SET=--fresh" in said
    folder = lab.run_dir / "comparison"
    report = json.loads((folder / "report.json").read_text())
    assert set(report["arms"]) == {"ours", "theirs"}
    assert list(report["failed"]) == ["broken-seed0"]
    assert (folder / "comparison.parquet").exists()
    assert not (folder / "manifest.json").exists()

    in_process.clear()
    base.symlink_to(chain.artifact("sft").path("policy"))
    assert lab.start("comparison") == 0
    # It now starts from a copy of the others' policy, so its actor is that of the arm with its settings.
    assert set(in_process) == {"broken-seed0/sft"}
    own, theirs = (lab.run_dir / "arms" / f"{arm}-seed0" / "actor" for arm in ("broken", "theirs"))
    assert (own / "looks.parquet").samefile(theirs / "looks.parquet")
    assert set(lab.artifact("comparison").report["arms"]) == set(arms)
    assert lab.artifact("comparison").manifest["counts"]["done"] == 3


@pytest.mark.slow
def test_a_refused_run_stays_in_the_comparison_with_what_it_paid_for(
    chain: Lab, in_process: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = stages.wiring.side_by_side.begin_stage

    def begin(stage: str, config: Path, log: Path) -> Any:
        if (config.stem, stage) == ("refused-seed0", "actor"):
            add(log, "actor: the critic's gate failed")
            return SimpleNamespace(poll=lambda: 4, returncode=4)
        return plain(stage, config, log)

    monkeypatch.setattr(stages.wiring.side_by_side, "begin_stage", begin)
    pretrained = {"actor.credit": {"mode": "actor_critic"}}  # reads rollouts
    lab = lab_of(
        tmp_path / "lab",
        chain.artifact("sft").path("policy"),
        arms={"ours": ARMS["ours"], "refused": pretrained},
        seeds=[0],
    )
    assert lab.start("comparison") == 5
    report = json.loads((lab.run_dir / "comparison" / "report.json").read_text())
    assert report["failed"] == {"refused-seed0": "actor ended with 4: the critic's gate failed"}
    refused, ours = (report["measures"]["rollouts"]["arms"][arm] for arm in ("refused", "ours"))
    rollouts = Artifact.open(lab.run_dir / "arms" / "refused-seed0", "rollouts").table("rollouts")
    assert refused["spent"] == rollouts.num_rows
    start = report["measures"]["rollouts"]["curves"][0]["ours"]
    assert refused["success_at_budget"]["value"] == start
    assert report["measures"]["rollouts"]["budget"] == ours["spent"]


@pytest.mark.slow
def test_a_killed_comparison_goes_on_where_it_stopped(chain: Lab, tmp_path: Path) -> None:
    """With processes of its own, side by side; the kill comes once one run is committed."""
    lab = lab_of(tmp_path / "lab", chain.artifact("sft").path("policy"), seeds=[0])
    command = [sys.executable, "-m", "stages.comparison", lab.config]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = environment | {"VDAPO_FAILPOINTS": "comparison.shard.after_ledger:1=kill"}
    assert subprocess.run(command, env=killed, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    arms = lab.run_dir / "arms"
    before = {path: path.stat().st_mtime_ns for path in arms.glob("*/*/manifest.json")}
    assert len([path for path in before if path.parent.name == "actor"]) >= 1
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert lab.artifact("comparison").manifest["counts"]["done"] == 2


class Stuck:
    """A stage that ends when it is told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.returncode = 75

    def poll(self) -> int | None:
        return None

    def terminate(self) -> None:
        self.calls.append("terminate")

    def wait(self) -> int:
        self.calls.append("wait")
        return 75


def test_a_stop_asks_all_stages_at_work_to_stop_and_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: list[Stuck] = []

    def begin(*_: Any) -> Stuck:
        at_work.append(Stuck())
        return at_work[-1]

    def stop_if_asked() -> None:
        if len(at_work) == 2:
            raise StopRequested(signal.SIGTERM)

    monkeypatch.setattr(stages.wiring.side_by_side, "begin_stage", begin)
    config = load_config(Config, Path(lab_of(tmp_path, "none", seeds=[0, 1, 2]).config))
    side_by_side = SideBySide(
        runs_of(config, tmp_path), tmp_path, 2, stop_if_asked=stop_if_asked, say=lambda _: None
    )
    with pytest.raises(StopRequested):
        list(side_by_side.ended())
    # Two of three seeds: the second arm of a seed waits for what the first one makes.
    assert [stage.calls for stage in at_work] == [["terminate", "wait"]] * 2


@pytest.mark.parametrize(
    ("codes", "word", "seconds"),
    [
        ([73, 73, 3], "3: no", 1 + 2),
        ([75] * 40 + [3], "3: no", 31 + 35 * 32),  # the stage itself says when it is enough
        ([73] * 33, "73: no", 31 + 27 * 32),
    ],
)
def test_a_stage_that_is_held_or_lost_a_worker_is_started_again_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int], word: str, seconds: int
) -> None:
    clock, begun, said = [0.0], list[tuple[str, float]](), list[str]()

    def begin(stage: str, config: Path, log: Path) -> Any:
        add(log, "tasks: no")
        begun.append((config.stem, clock[0]))
        ended = codes[len(begun) - 1]
        return SimpleNamespace(poll=lambda: ended, returncode=ended)

    def sleep(pause: float) -> None:
        clock[0] += pause

    monkeypatch.setattr(stages.wiring.side_by_side, "begin_stage", begin)
    time = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(stages.wiring.side_by_side, "time", time)
    config = load_config(Config, Path(lab_of(tmp_path, "none", seeds=[0]).config))
    side_by_side = SideBySide(
        runs_of(config, tmp_path), tmp_path, 1, stop_if_asked=lambda: None, say=said.append
    )
    ended = {run.name: failure for run, failure in side_by_side.ended()}
    # What cannot be made for one is not tried for the other.
    assert {failure.words for failure in ended.values() if failure} == {f"tasks ended with {word}"}
    assert len(ended) == 2
    assert [name for name, _ in begun] == ["ours-seed0"] * len(codes)
    assert begun[-1][1] == pytest.approx(seconds, rel=0.05, abs=1)
    assert len([line for line in said if "starts again" in line]) == 1


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        ({"arms": {}}, "comparison.arms names no arm"),
        ({"method": "nobody"}, "comparison.method = nobody is no arm; arms: ours, theirs"),
        ({"seeds": [1, 1]}, r"comparison.seeds = \[1, 1\]"),
        (
            {"arms": ARMS | {"x": {"actor.credit.lamb": 1}}},
            "arms.x with override.*is not a setting",
        ),
        ({"arms": ARMS | {"x": {"tasks.num_train": 9}}}, "arms.x changes what all arms share"),
        ({"arms": ARMS | {"x": {"run.seed": 9}}}, "arms.x changes what all arms share"),
        (
            {"arms": ARMS | {"x": {"actor.evaluate_tasks": 9}}},
            "arms.x changes what all arms share",
        ),
        ({"arms": ARMS | {"../x": {}}}, "run.name"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused_before_anything_runs(
    tmp_path: Path, comparison: Any, said: str
) -> None:
    lab = lab_of(tmp_path, "none", **comparison)
    with pytest.raises(ConfigError, match=said):
        lab.plan("comparison")


STORED = {"v_dapo", "no_critic", "oracle", "shuffled", "verifier_steps"}
ALONE = {"decoupled_clip", "grpo", "imitation", "tree_rpo", "actor_critic"}
ARMS_OF = {
    "dense": (STORED, ALONE),
    "sparse": (STORED | {"no_feedback", "direct_advantage"}, ALONE | {"stripped", "decoupled_clip_best"}),
    "rare": (
        {"v_dapo", "no_critic", "no_feedback"},
        {"decoupled_clip", "decoupled_clip_rate", "stripped_rate"},
    ),
    "long": (STORED, ALONE),
}


@pytest.mark.parametrize("regime", ARMS_OF)
def test_the_shipped_regimes_have_their_arms_on_equal_terms(regime: str, tmp_path: Path) -> None:
    config = load_config(Config, ROOT / "configs" / f"comparison-{regime}.yaml")
    runs = runs_of(config, tmp_path)
    stored, alone = ARMS_OF[regime]
    assert {run.arm for run in runs} == stored | alone
    assert len(runs) == 5 * len(stored | alone)
    assert min(config.actor.evaluate_tasks, config.tasks.num_held_out) >= 400
    for run in runs:
        assert run.config.actor.credit.kl == 0
        assert (run.config.actor.learning_rate == config.actor.learning_rate) == (
            not run.arm.endswith("_rate")
        )
        assert run.config.sft == config.sft
        assert ("stored" in run.chain) == (run.arm in stored)
        assert ("critic" in run.chain) == (run.arm in ("v_dapo", "shuffled", "direct_advantage"))
        assert ("rollouts" in run.chain) == (run.arm in stored | {"actor_critic"})
    # Everything up to the start is made once a seed, and so are the critic and what stored rollouts teach;
    # bare rollouts teach something else, and direct advantage has its own labels, critic and objective.
    made = Counter(stage for _, stage in made_once(runs))
    bare, direct = 5 * ("no_feedback" in stored), 5 * ("direct_advantage" in stored)
    assert (made["sft"], made["critic_report"], made["actor"]) == (5, 5 + direct, len(runs))
    assert (made["rollouts"], made["stored"]) == (5 + bare, 5 + bare + direct)


def test_an_arm_makes_what_its_actor_needs_and_shares_what_is_alike(tmp_path: Path) -> None:
    likelihood = {"stored.objective": {"kind": "likelihood"}}
    arms = {
        "free": {"actor.credit": {"mode": "decoupled_clip"}},
        "oracle": {"actor.credit": {"mode": "v_dapo", "values": "oracle"}},
        "with_critic": {"actor.credit": {"mode": "v_dapo"}},
        "shuffled": {"actor.credit": {"mode": "v_dapo", "values": "shuffled"}},
        "larger": {"actor.credit": {"mode": "v_dapo"}, "critic.max_epochs": 9},
        "stored": likelihood | {"actor.credit": {"mode": "decoupled_clip"}},
        "stored_critic": likelihood | {"actor.credit": {"mode": "v_dapo"}},
        "stored_by_critic": {
            "stored.objective": {"kind": "advantage_weighted"},
            "actor.credit": {"mode": "decoupled_clip"},
        },
    }
    lab = lab_of(tmp_path, "none", arms=arms, method="free")
    config = load_config(
        Config, Path(lab.config), ["labels.num_continuations=0", "labels.target=outcome_dense"]
    )
    runs = runs_of(config, tmp_path)
    chains = {run.arm: run.chain for run in runs}
    assert chains["free"] == chains["oracle"] == ("tasks", "sft", "actor")
    critic = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report", "actor")
    assert chains["with_critic"] == chains["shuffled"] == chains["larger"] == critic
    assert chains["stored"] == ("tasks", "sft", "rollouts", "stored", "actor")
    assert chains["stored_critic"] == chains["stored_by_critic"] == (*critic[:-1], "stored", "actor")
    made = Counter((run.seed, stage) for run, stage in made_once(runs))
    of_seed = {"tasks": 1, "sft": 1, "rollouts": 1, "labels": 1, "critic": 2, "critic_report": 2}
    of_seed |= {"stored": 2, "actor": len(arms)}
    assert made == {(seed, stage): number for seed in (0, 1) for stage, number in of_seed.items()}
