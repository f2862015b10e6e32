"""A refresh of the critic: what it starts from, what it finds free, how it ends."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml

import stages.bodies.actor
import stages.wiring.learner
from critics.drift.state import DriftState
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.signals import StopRequested
from pipeline.artifacts.start import identity_of
from pipeline.config import load_config
from pipeline.errors import ArtifactError, ConfigError, ExitCode
from pipeline.hardware import check_gpus
from pipeline.planner.processes import CONTEXT_BYTES, GIB
from stages.actor import STAGE
from stages.settings import Config
from stages.wiring.arm_costs import link_with_refreshes, refresh_costs
from stages.wiring.refresh import STAGES, critic_folder, policy_folder, refreshed
from stages.wiring.watch import Watch
from tests.stages.conftest import CRITIC

FIRST = "actor.credit.drift.react=refresh_first"
DRIFT = tuple(f"actor.credit.drift.{how}" for how in ("paid_every=1", "states=6", "num_continuations=3"))


@pytest.fixture
def steps_off(monkeypatch):
    """Whatever its few states say, the first paid check finds steps off."""
    monkeypatch.setattr("critics.drift.state.is_measured", lambda found: True)
    monkeypatch.setattr("critics.drift.state.steps_are_off", lambda found: True)


@pytest.mark.parametrize(("code", "stages_run"), [(4, 4), (0, 6), (-9, 4), (5, 4)])
def test_a_refresh_ends_at_the_stage_that_refuses_for_quality(tmp_path, monkeypatch, code, stages_run):
    """Its actor may succeed at everything, which leaves a critic nothing to learn: no cause to stop it."""
    ran: list[str] = []

    def finish(stage, *_):
        ran.append(stage)
        return code if stage == "labels" else 0

    monkeypatch.setattr("stages.wiring.refresh.finish_stage", finish)
    said: list[str] = []
    settings, policy = Config(), policy_folder(tmp_path, 3, "0123456789")
    go = partial(refreshed, DriftState(20, wants_refresh=True), settings, policy, "0123456789")
    go = partial(go, contexts=("bare",), say=said.append, stop_if_asked=lambda: None)
    if code not in (0, 4):  # a failure to mend, after which the same command goes on; a kill has no code
        with pytest.raises(ArtifactError, match="in its stage labels") as raised:
            go()
        assert raised.value.code == (5 if code == 5 else 1)
        return
    state = go()
    assert ran == list(STAGES[:stages_run])
    assert state == DriftState(20, steps_off=True, refused_runs=("refresh/00003-01234567",))
    assert "no critic could be made" in said[0]
    assert critic_folder(tmp_path, state.refresh_runs, has_own=True) == tmp_path / "critic" / "critic"
    last = critic_folder(tmp_path, ("refresh/a", "refresh/b"), has_own=False)
    assert last == tmp_path / "refresh" / "b" / "critic" / "critic"
    assert critic_folder(tmp_path, (), has_own=False) is None
    config = load_config(Config, tmp_path / "refresh" / "00003-01234567.yaml", [])
    assert (config.run.name, config.run.data_dir) == ("00003-01234567", str(tmp_path / "refresh"))
    assert policy == tmp_path / "refresh" / "policies" / "00003-01234567"
    assert (config.sft.base, config.sft.num_updates) == (str(policy), 0)


def test_an_actor_that_was_to_start_with_a_critic_of_its_own_needs_one(tmp_path, monkeypatch):
    monkeypatch.setattr("stages.wiring.refresh.finish_stage", lambda *_: ExitCode.QUALITY)
    settings = load_config(Config, Path("configs/demo.yaml"), [FIRST, "actor.credit.drift.refresh_tasks=9"])
    with pytest.raises(ArtifactError, match=r"refresh_tasks.*react: correct") as raised:
        refreshed(
            DriftState(wants_refresh=True),
            settings,
            policy_folder(tmp_path, 0, "0123456789"),
            "0123456789",
            contexts=("bare",),
            say=print,
            stop_if_asked=lambda: None,
        )
    assert raised.value.code == ExitCode.QUALITY
    assert not {"critic", "critic_report"} & set(STAGE.inputs(settings))  # of the starting policy
    config = load_config(Config, tmp_path / "refresh" / "00000-01234567.yaml", [])
    assert config.rollouts.num_tasks == 9


def test_a_refresh_asks_for_what_the_actors_own_context_leaves_of_a_gpu(tmp_path, monkeypatch):
    """The actor waits for it, and CUDA's context stays with a process for as long as it lives."""
    asked: list[float] = []

    def finish(stage, file, _):
        asked.append(load_config(Config, file, []).hardware.gpu_memory_gib)
        check_gpus(1, asked[-1], {})  # as every stage does first; raises ConfigError
        return ExitCode.QUALITY

    monkeypatch.setattr("pipeline.hardware.free_gpu_memory", lambda: [23 - CONTEXT_BYTES / GIB])
    monkeypatch.setattr("stages.wiring.refresh.finish_stage", finish)
    with pytest.raises(ConfigError, match=r"GPU 0 has 22\.5 GiB free, hardware\.gpu_memory_gib = 23"):
        check_gpus(1, 23.0, {})
    for gib in (23.0, 0.0):  # 0: nothing is asked
        settings = Config.model_validate({"hardware": {"num_gpus": 1, "gpu_memory_gib": gib}})
        folder, state = policy_folder(tmp_path, 0, f"{gib}"), DriftState(wants_refresh=True)
        refreshed(state, settings, folder, "", contexts=(), say=print, stop_if_asked=lambda: None)
    assert asked == [22.5, 0.0]


@pytest.mark.parametrize("react", ["never", "correct", "refresh_once", "refresh", "refresh_first"])
def test_settings_of_a_critic_that_may_be_made_again_are_the_actor_s(react):
    """Else two arms that differ in them alone would be one actor."""
    demo, react_so = Path("configs/demo.yaml"), f"actor.credit.drift.react={react}"
    keys = {
        identity_of(STAGE, load_config(Config, demo, [react_so, other]), {})[0]["stage_key"]
        for other in ("critic.max_epochs=7", "critic.max_epochs=9")
    }
    assert len(keys) == (2 if react.startswith("refresh") else 1)


class Holding:
    """A trainer, engine or critic, and 9 GiB of a GPU until it is closed."""

    def __init__(self, thing, held, counts):
        self._thing, self._held = thing, held
        held.add(self)
        counts.append(len(held))

    def __getattr__(self, name):
        return getattr(self._thing, name)

    def close(self):
        self._thing.close()
        self._held.discard(self)


@pytest.mark.usefixtures("steps_off")
@pytest.mark.slow
def test_a_refresh_finds_the_gpus_free_and_the_actor_goes_on_after_it(chain, tmp_path, monkeypatch):
    """Its stages ask for all of a GPU's memory, which trainer, reference, engine and critic hold before."""
    held: set[Any] = set()
    counts: list[int] = []
    for name in ("make_policy_trainer", "make_hands", "load_critic"):
        made = getattr(stages.wiring.learner, name)
        monkeypatch.setattr(
            stages.wiring.learner, name, lambda *a, made=made, **k: Holding(made(*a, **k), held, counts)
        )

    def finish(*_):
        check_gpus(1, 39.0, {})  # as every stage does first; raises ConfigError
        return 4

    monkeypatch.setattr("pipeline.hardware.free_gpu_memory", lambda: [40.0 - 9 * len(held)])
    monkeypatch.setattr("stages.wiring.refresh.finish_stage", finish)
    monkeypatch.setattr(Watch, "whose_values", "critic slope=2.0 shift=0.5")
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    assert lab.start("actor", "actor.num_iterations=3", *DRIFT) == 0
    assert max(counts) == 4
    assert not held
    [refused] = lab.artifact("actor").report["refused_refreshes"]
    settings = yaml.safe_load((lab.run_dir / f"{refused}.yaml").read_text())
    assert (Path(settings["sft"]["base"]) / "model.safetensors").is_file()
    drift = lab.artifact("actor").report["drift"]
    assert [look["alpha"] for look in drift] == [0.5, 0.5, 0.0]  # found off in the second iteration
    # What was checked is kept with the rollouts, and values name how they were corrected.
    assert [look.get("states", 0) >= 6 for look in drift] == [False, True, False]
    checked = [r for r in lab.rollouts("actor") if r.kind != "whole"]
    assert len(checked) >= 12
    assert {r.iteration for r in checked} == {1}
    assert set(lab.artifact("actor").table("values")["critic"].to_pylist()) == {Watch.whose_values}
    assert (lab.run_dir / "actor" / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.soak
@pytest.mark.usefixtures("steps_off")
def test_a_refresh_makes_a_critic_of_the_present_actor_and_may_be_stopped(chain, tmp_path, monkeypatch):
    def asked_to_stop(*arguments, **_):
        raise StopRequested(signal.SIGTERM)

    lab = chain.copy(tmp_path / "lab", *CRITIC)
    settings = ["actor.num_iterations=3", *DRIFT]
    with monkeypatch.context() as patch:
        patch.setattr(stages.bodies.actor, "refreshed", asked_to_stop)
        assert lab.start("actor", *settings) == 75
    found = {(state["iterations"], state["drift"]["wants_refresh"]) for state in lab.checkpoints("actor")}
    assert found == {(1, False), (2, True)}
    assert lab.start("actor", *settings) == 0
    [run] = (lab.run_dir / "refresh").glob("*/critic_report")
    judged = Artifact.open(run.parent, "critic_report")
    values = lab.artifact("actor").table("values").to_pylist()
    iteration = {r.rollout_id: r.iteration for r in lab.rollouts("actor")}
    used = {(iteration[row["rollout_id"]], row["critic"]) for row in values}
    critics = lab.artifact("critic"), Artifact.open(run.parent, "critic")
    old, new = (critic.report["critic_digest"] for critic in critics)
    assert used == {(0, old), (1, old), (2, new)}
    assert lab.artifact("actor").report["refreshes"] == [f"refresh/{run.parent.name}"]
    present = next(r.policy_digest for r in lab.rollouts("actor") if r.iteration == 2)
    assert judged.report["policy_digest"] == present


@pytest.mark.slow
def test_a_critic_may_be_made_for_the_actor_as_it_starts(chain, tmp_path):
    """Then the run needs no critic of the starting policy, whose stages are not there."""
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    few = len(lab.artifact("tasks").table("tasks").filter(pc.field("split") == "train")) - 3
    settings = ["actor.num_iterations=2", FIRST, f"actor.credit.drift.refresh_tasks={few}"]
    assert lab.start("actor", *settings, "actor.credit.on_weak_critic=allow") == 0
    report = lab.artifact("actor").report
    [run] = report["refreshes"]
    assert run.startswith("refresh/00000-")
    gate = json.loads((lab.run_dir / run / "critic_report" / "gate.json").read_text())
    assert report["critic_gate"]["verdict"] == gate["verdict"]
    assert report["critic_gate"]["override"] == ("allow" if report["critic_gate"]["reasons"] else None)
    assert gate["verdict"] in (lab.run_dir / "actor" / "actor" / "README.md").read_text()
    made = {name: Artifact.open(lab.run_dir / run, name) for name in ("rollouts", "critic", "critic_report")}
    assert len(set(made["rollouts"].table("rollouts")["task_id"].to_pylist())) == few
    used = set(lab.artifact("actor").table("values")["critic"].to_pylist())
    assert {digest.split()[0] for digest in used} == {made["critic"].report["critic_digest"]}
    first = {r.policy_digest for r in lab.rollouts("actor") if r.iteration == 0}
    assert first == {made["critic_report"].report["policy_digest"]}
    assert [look["alpha"] for look in lab.artifact("actor").report["drift"]] == [0.5, 0.5]
    paid = refresh_costs(lab.run_dir)
    assert list(paid) == [0]
    assert paid[0].min() > 0
    shutil.copytree(lab.run_dir / run, lab.run_dir / "refresh" / "00000-of-an-actor-before")
    assert (refresh_costs(lab.run_dir)[0] == paid[0]).all()
    # An actor that another arm shares goes with its refreshes; one that is gone is not free.
    link_with_refreshes(lab.run_dir / "actor", tmp_path / "other" / "actor")
    assert (refresh_costs(tmp_path / "other")[0] == paid[0]).all()
    shutil.rmtree(tmp_path / "other" / run)
    with pytest.raises(ArtifactError, match=f"lacks {run}"):
        refresh_costs(tmp_path / "other")
