"""The watch over a frozen critic: what it samples, finds, and does; and an actor's run under it."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stages.bodies.actor
import stages.wiring.refresh
from critics.drift.checks import fit_correction
from critics.logit import logit, sigmoid
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from pipeline.artifacts.signals import StopRequested
from pipeline.credit import VDapo
from pipeline.ids import rollout_id
from pipeline.types import Rollout, Step, Task
from stages.settings import Actor, Config, Drift
from stages.settings import VDapo as CreditSettings
from stages.wiring.actor_page import actor_page, actor_report
from stages.wiring.refresh import refresh_settings
from stages.wiring.watch import Watch

CRITIC = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")
NUM_STEPS, K = 4, 16


class FakeCritic:
    """Says V plus something, in log-odds; V is in each rollout's log-probabilities."""

    digest = "fake"

    def __init__(self, shift: float = 0.0, blind: bool = False) -> None:
        self.shift, self.blind = shift, blind

    def values(self, rollouts: Any) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        found = []
        for r in rollouts:
            V = rng.random(len(r.steps)) if self.blind else np.array(r.logprobs[: len(r.steps)])
            found.append(sigmoid(logit(V) + self.shift))
        return found


def rollouts_of(number: int) -> list[Rollout]:
    """Whole bare rollouts whose log-probabilities hold V at their steps."""
    rng = np.random.default_rng(1)
    made = []
    for i in range(number):
        V = sigmoid(rng.normal() + np.cumsum(rng.normal(0, 1.0, NUM_STEPS)))
        steps = tuple(Step(t, t, t, t + 1, "") for t in range(NUM_STEPS))
        made.append(
            Rollout(
                rollout_id(f"g{i}", 0, 0), "whole", f"t{i}", f"g{i}", 0, 0, 0, (), 0, False, "", (), (1,),
                (2,) * NUM_STEPS, (1,) * NUM_STEPS, tuple(V), 1.0, 1.0, -1, 64, i, "p", "tok", "tpl", "ended",
                float(rng.random() < V[-1]), 0.0, "ok", (), "", "", steps,
            )
        )  # fmt: skip
    return made


class FakePlayer:
    """Continues by tossing a coin with chance V; notes the seeds that it was asked for."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def play(self, requests: Any, on_finish: Any = None) -> list[Rollout]:
        self.seeds += [r.seed for r in requests]
        rng = np.random.default_rng(2)
        return [
            replace(
                r.parent,
                rollout_id=r.rollout_id,
                kind=r.kind,
                draw=r.draw,
                parent_rollout_ids=r.parent_rollout_ids,
                start_step_index=r.start_step_index,
                reward=float(rng.random() < r.parent.logprobs[r.start_step_index]),
                steps=r.parent.steps[:1],
            )
            for r in requests
        ]


def watch_of(critic: FakeCritic, kl: float = 1e-3, **drift: Any) -> Watch:
    config = Config(actor=Actor(credit=CreditSettings(kl=kl, drift=Drift(**drift))))
    said: list[str] = []
    start: Any = SimpleNamespace(
        config=config, seed=0, stage_key="k", say=said.append, stop_if_asked=lambda: None
    )
    tasks = [Task(f"t{i}", "phone", "train", 1, (), "rule", "", "x", f"c{i}", i) for i in range(500)]
    watch = Watch(start, critic, tasks)  # type: ignore[arg-type]
    watch.said = said  # type: ignore[attr-defined]
    return watch


CREDIT = VDapo(alpha=0.5)


def given(watch: Watch, rollouts: list[Rollout]) -> dict[str, np.ndarray]:
    return {r.rollout_id: v for r, v in zip(rollouts, watch.values(rollouts), strict=True)}


def checked(watch: Watch, rollouts: list[Rollout]) -> dict[str, Any]:
    return watch.check([*rollouts, *watch.play(FakePlayer(), rollouts)], 20)  # type: ignore[arg-type]


def test_a_critic_that_fits_keeps_its_weight() -> None:
    rollouts, watch = rollouts_of(60), watch_of(FakeCritic())
    assert checked(watch, rollouts)["critic_drift/rho_a_low"] > 0
    assert watch.credit(CREDIT) == CREDIT
    assert not watch.wants_refresh


def test_a_stale_critic_loses_its_step_weight_and_asks_for_a_refresh_once() -> None:
    rollouts, watch = rollouts_of(60), watch_of(FakeCritic(blind=True))
    found = checked(watch, rollouts)
    assert found["critic_drift/steps_off"] == 1
    assert watch.credit(CREDIT).alpha == 0  # type: ignore[attr-defined]
    assert watch.wants_refresh
    assert "no longer knows this actor's steps" in watch.said[0]  # type: ignore[attr-defined]
    assert "Cov(A, Ahat) is " in watch.said[0]  # type: ignore[attr-defined]
    watch.state = watch.state | {"refreshes": 1}
    checked(watch, rollouts)
    assert not watch.wants_refresh
    kept = watch_of(FakeCritic(blind=True), react=False, refresh="never")
    checked(kept, rollouts)
    assert kept.credit(CREDIT) == CREDIT
    assert not kept.wants_refresh


class FailingPlayer(FakePlayer):
    """Whose environment can grade nothing."""

    def play(self, requests: Any, on_finish: Any = None) -> list[Rollout]:
        return [replace(r, reward=None) for r in super().play(requests)]


def test_a_check_that_measured_nothing_decides_nothing() -> None:
    rollouts, watch = rollouts_of(60), watch_of(FakeCritic())
    found = watch.check([*rollouts, *watch.play(FailingPlayer(), rollouts)], 20)  # type: ignore[arg-type]
    assert found == {"critic_drift/states": 0.0}
    assert watch.credit(CREDIT) == CREDIT
    assert not watch.wants_refresh
    assert watch.state["next_check"] == 40
    assert "says nothing of steps" in watch.said[0]  # type: ignore[attr-defined]


def test_a_critic_that_failed_again_is_checked_on_only_if_it_may_be_refreshed_again() -> None:
    for refresh, due in (("once", False), ("never", False), ("on_drift", True)):
        watch = watch_of(FakeCritic(), refresh=refresh)
        watch.state = watch.state | {"steps_off": True, "refreshes": 1}
        assert watch.is_due(20, watch.credit(CREDIT)) == due


def test_each_look_tells_the_alpha_that_its_iteration_was_trained_with() -> None:
    rollouts, watch = rollouts_of(60), watch_of(FakeCritic(blind=True))
    told = []
    for i in range(2):
        now = watch.credit(CREDIT)
        checked_now = watch.play(FakePlayer(), rollouts)  # type: ignore[arg-type]
        looked = watch.after(rollouts, given(watch, rollouts), checked_now, i, now)
        told.append((looked["critic_drift/steps_off"], looked["critic_drift/alpha"]))
    assert told == [(1.0, 0.5), (1.0, 0.0)]


def test_a_level_that_is_off_is_corrected_for_later_iterations_only() -> None:
    rollouts, watch = rollouts_of(400), watch_of(FakeCritic(shift=-1.5))
    before = watch.values(rollouts)
    assert watch.whose_values == watch.critic.digest
    found = watch.look(rollouts, given(watch, rollouts))
    assert found["critic_drift/bias"] < -0.1
    assert found["critic_drift/correction_shift"] == 0  # of the values that were looked at
    assert watch.whose_values.startswith(f"{watch.critic.digest} slope=")
    after = watch.look(rollouts, given(watch, rollouts))
    assert after["critic_drift/correction_shift"] > 0.5
    assert abs(after["critic_drift/bias"]) < 0.02
    assert all((a > b)[b < 0.95].all() for a, b in zip(watch.values(rollouts), before, strict=True))
    left = watch_of(FakeCritic(shift=-1.5), react=False)
    left.look(rollouts, given(left, rollouts))
    assert left.values(rollouts)[0] == pytest.approx(before[0])


def test_checks_are_due_by_updates_and_only_while_the_critic_weighs() -> None:
    watch = watch_of(FakeCritic(), paid_every=5)
    assert [watch.is_due(n, CREDIT) for n in (0, 4, 5, 9)] == [False, False, True, True]
    assert not watch.is_due(5, replace(CREDIT, alpha=0.0))
    checked(watch, rollouts_of(30))
    assert watch.state["next_check"] == 25
    assert not watch_of(FakeCritic(), paid_every=0).is_due(10**6, CREDIT)


def test_whole_rollouts_are_continued_until_there_are_enough_states() -> None:
    watch = watch_of(FakeCritic(), states=10, num_continuations=3)
    played = watch.play(FakePlayer(), rollouts_of(20))  # type: ignore[arg-type]
    assert len(played) == 3 * NUM_STEPS * 3
    assert len({r.rollout_id for r in played}) == len(played)


def test_seeds_of_a_check_do_not_depend_on_ids() -> None:
    """An id changes with every digest upstream; what is sampled for a check must not."""
    watch = watch_of(FakeCritic(), states=10, num_continuations=3)
    rollouts = rollouts_of(20)
    renamed = [replace(r, rollout_id=f"z{19 - i}", group_id=f"h{i}") for i, r in enumerate(rollouts)]
    seeds = []
    for named in (rollouts, renamed):
        player = FakePlayer()
        watch.play(player, named)  # type: ignore[arg-type]
        seeds.append(player.seeds)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3 * NUM_STEPS * 3


def test_the_state_survives_a_checkpoint() -> None:
    rollouts, watch = rollouts_of(400), watch_of(FakeCritic(shift=-1.5, blind=False))
    watch.moved({"ref_kl": 0.02})
    watch.after(rollouts, given(watch, rollouts), [], 0, CREDIT)
    again = watch_of(FakeCritic(shift=-1.5))
    again.restore(json.loads(json.dumps(watch.state)))
    assert again.state == watch.state
    assert again.after(rollouts, given(again, rollouts), [], 0, CREDIT)["critic_drift/kl"] == 0.02


def test_one_unlikely_token_is_no_distance() -> None:
    watch = watch_of(FakeCritic())
    for kl in (0.02, 111.0, 0.04):
        watch.moved({"ref_kl": kl})
    assert watch.state["kl"] == 0.04


def test_a_check_without_bounds_leaves_the_bounds_of_the_others_in_the_drawing() -> None:
    looks = [
        {"iteration": i, "rollouts/count": 60.0, "critic_drift/bias": 0.0, "critic_drift/rho_a": 0.3 - i / 10}
        | ({} if i == 1 else {"critic_drift/rho_a_low": 0.0, "critic_drift/rho_a_high": 0.6})
        for i in range(3)
    ]
    with_bounds = actor_page(actor_report(looks, 3, 3))
    for look in looks:
        look.pop("critic_drift/rho_a_low", None)
    assert with_bounds != actor_page(actor_report(looks, 3, 3))


def test_a_kl_that_no_update_measures_is_told_as_not_measured_and_never_as_0() -> None:
    rollouts = rollouts_of(60)

    def looks_of(watch: Watch, updates: list[dict[str, float]]) -> list[dict[str, Any]]:
        looks = []
        for i, metrics in enumerate(updates):
            checked_now = watch.play(FakePlayer(), rollouts)  # type: ignore[arg-type]
            watch.moved(metrics)
            found = watch.after(rollouts, given(watch, rollouts), checked_now, i, CREDIT)
            looks.append({"iteration": i, "rollouts/count": 60.0} | found)
        return looks

    measured = actor_report(looks_of(watch_of(FakeCritic()), [{"ref_kl": 0.02}] * 2), 2, 2)
    assert [entry["kl"] for entry in measured["drift"]] == [0.0, 0.02]  # of what sampled the iteration
    assert measured["clean_up_to_kl"] == 0.02
    assert "not measured" not in actor_page(measured)
    without = actor_report(looks_of(watch_of(FakeCritic(), kl=0.0), [{}, {}]), 2, 2)
    assert not any("kl" in entry for entry in without["drift"])
    assert without["clean_up_to_kl"] == "not measured"
    html = actor_page(json.loads(json.dumps(without)))
    assert "KL to the starting policy: not measured" in html
    assert "nats per token" not in html  # no curve against it either


def test_a_refreshing_run_starts_from_the_actor_and_loads_as_a_configuration(tmp_path: Any) -> None:
    settings = refresh_settings(Config().model_dump(mode="json"), tmp_path, "00003-abc", tmp_path / "policy")
    config = Config.model_validate(settings)
    assert (config.run.name, config.run.data_dir) == ("00003-abc", str(tmp_path))
    assert (config.sft.base, config.sft.num_updates) == (str(tmp_path / "policy"), 0)


def test_the_report_shows_the_curve_and_says_what_was_found() -> None:
    history = [
        {"iteration": i, "rollouts/count": 8.0, "critic_drift/bias": -0.05 * i, "critic_drift/kl": 0.01 * i}
        | ({"critic_drift/rho_a": 0.5, "critic_drift/rho_a_low": 0.3, "critic_drift/rho_a_high": 0.7,
            "critic_drift/steps_off": float(i == 4)} if i % 2 == 0 else {})
        for i in range(5)
    ]  # fmt: skip
    report = actor_report(history, 10, 10)
    assert [entry["bias"] for entry in report["drift"]] == [-0.05 * i for i in range(5)]
    assert report["clean_up_to_kl"] == 0.02  # checks at 0, .02 and .04, the last of which failed
    html = actor_page(json.loads(json.dumps(report)))
    assert "found off in iterations 4" in html
    assert html.count("<svg") == 3
    assert "nothing to watch" in actor_page(actor_report([{"iteration": 0, "rollouts/count": 1.0}], 1, 1))


def test_an_actor_is_watched_and_its_checks_are_kept_with_its_rollouts(
    chain: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    monkeypatch.setattr(Watch, "whose_values", "critic slope=2.0 shift=0.5")
    drift = ["paid_every=1", "states=6", "num_continuations=2", "refresh=never"]
    assert lab.start("actor", *(f"actor.credit.drift.{setting}" for setting in drift)) == 0
    looks = [m for m in read_metrics(lab.run_dir / "actor" / "metrics.jsonl") if "rollouts/count" in m]
    assert "critic_drift/steps_off" not in looks[0]
    assert looks[1]["critic_drift/states"] >= 6
    assert [look["critic_drift/alpha"] for look in looks] == [0.5, 0.5]
    continued = [
        r for r in lab.rollouts("actor") if r.rollout_id != rollout_id(r.group_id, r.attempt, r.draw)
    ]
    assert len(continued) >= 12
    assert set(lab.artifact("actor").table("values")["critic"].to_pylist()) == {Watch.whose_values}
    assert {r.iteration for r in continued} == {1}
    assert (lab.run_dir / "actor" / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", None])
def test_what_a_refresh_found_decides_and_nothing_of_the_old_critic_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str | None
) -> None:
    """None: no critic could be made of what the actor plays, and the old one stays without weight."""
    watch, new = watch_of(FakeCritic(shift=-1.0)), FakeCritic()
    watch._start.run_dir = tmp_path
    rollouts = rollouts_of(400)
    watch.look(rollouts, given(watch, rollouts))
    before = watch.state = watch.state | {"steps_off": verdict is not None, "wants_refresh": True}
    assert before["recent"]
    assert before["shift"] != 0
    monkeypatch.setattr("stages.wiring.watch.load_critic", lambda *_: new)
    monkeypatch.setattr("stages.wiring.watch.check_made_for", lambda *_, **__: None)
    run = tmp_path / "refresh" / "00003-abc"
    if verdict is not None:
        (run / "critic_report").mkdir(parents=True)
        reasons = [] if verdict == "PASS" else ["ev_within"]
        gate = {
            "verdict": verdict,
            "reasons": reasons,
            "contexts": ["bare", "guided"],
            "adv_rmse": {"value": 0.07},
        }
        (run / "critic_report" / "gate.json").write_text(json.dumps(gate))
    watch.refreshed(run, "policy", "tokenizer")
    after = watch.state
    assert not watch.wants_refresh
    assert not watch.may_refresh
    assert after["steps_off"] is (verdict != "PASS")
    assert watch.credit(CREDIT).alpha == (0.5 if verdict == "PASS" else 0)
    lists = (after["refresh_runs"], after["refused_runs"])
    if verdict is None:
        assert lists == ([], ["refresh/00003-abc"])
        assert (watch.critic.shift, after["shift"], after["recent"]) == (
            -1.0,
            before["shift"],
            before["recent"],
        )
    else:
        assert lists == (["refresh/00003-abc"], [])
        assert (watch.critic, after["slope"], after["shift"], after["recent"]) == (new, 1, 0, [])
        assert after["adv_rmse"] == 0.07


@pytest.mark.parametrize(("code", "stages_run"), [(4, 4), (0, 6)])
def test_a_refresh_ends_at_the_stage_that_refuses_for_quality(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, stages_run: int
) -> None:
    """Its actor may succeed at everything, which leaves a critic nothing to learn: no cause to stop it."""
    ran: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append(command[2].removeprefix("stages."))
        return SimpleNamespace(returncode=code if ran[-1] == "labels" else 0)

    monkeypatch.setattr("stages.wiring.refresh.subprocess.run", run)
    monkeypatch.setattr("stages.wiring.refresh.serve_folder", lambda *_: None)
    start: Any = SimpleNamespace(run_dir=tmp_path, config=Config(), stop_if_asked=lambda: None)
    engine = SimpleNamespace(policy_digest="0123456789", sleep=lambda: None)
    trainer: Any = SimpleNamespace(export=lambda folder: None, offload=lambda: None)
    player: Any = SimpleNamespace(engine=engine, tokenizer=None)
    folder = stages.wiring.refresh.refresh(start, trainer, player, 3)
    assert folder == tmp_path / "refresh" / "00003-01234567"
    assert ran == list(CRITIC[:stages_run])


def test_where_nothing_is_recalibrated_nothing_is_remembered_for_it() -> None:
    watch, rollouts = watch_of(FakeCritic(shift=-1.0), react=False), rollouts_of(400)
    assert watch.look(rollouts, given(watch, rollouts))["critic_drift/level_off"] == 1
    assert watch.state["recent"] == []
    assert watch.state["shift"] == 0


def test_an_iteration_that_is_off_is_refitted_together_with_those_before_it() -> None:
    """It was found for being extreme: fitted alone, level and slope would follow its luck."""
    usual, watch = rollouts_of(400), watch_of(FakeCritic(shift=-0.4))
    lucky = [replace(r, reward=1.0) if i % 3 == 0 else r for i, r in enumerate(usual)]
    told = [
        watch.look(of, given(watch, usual))["critic_drift/level_off"] for of in (usual, usual, usual, lucky)
    ]
    assert told == [0, 0, 0, 1]
    frozen = watch.critic.values(usual)

    def shift_of(*iterations: list[Rollout]) -> float:
        rewards = [float(r.reward or 0) for of in iterations for r in of]
        return fit_correction(frozen * len(iterations), rewards).shift

    # A fit says more than what the level is usually off by, .4, and less than what that iteration says.
    assert watch.state["shift"] == pytest.approx(shift_of(usual, usual, lucky))
    assert 0.4 < watch.state["shift"] < shift_of(lucky) - 0.3
    # Values that were corrected are kept as they were frozen, and the whole state is JSON.
    watch.look(usual, given(watch, usual))
    kept, _ = json.loads(json.dumps(watch.state))["recent"][-1]
    assert np.concatenate(kept) == pytest.approx(np.concatenate(frozen))
    assert len(watch.state["recent"]) == 3


@pytest.mark.slow
def test_a_refresh_makes_a_critic_of_the_present_actor_and_may_be_stopped(
    chain: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its few states say: the first paid check finds steps off."""
    monkeypatch.setattr("stages.wiring.watch.is_measured", lambda found: True)
    monkeypatch.setattr("stages.wiring.watch.steps_are_off", lambda found, **limits: True)
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    drift = ["paid_every=1", "states=6", "num_continuations=2"]
    settings = ["actor.num_iterations=3", *(f"actor.credit.drift.{setting}" for setting in drift)]
    with monkeypatch.context() as patch:
        patch.setattr(stages.bodies.actor, "refresh", asked_to_stop)
        assert lab.start("actor", *settings) == 75
    commits = (lab.run_dir / "actor" / "checkpoints").glob("*/commit.json")
    states = [json.loads(commit.read_text())["state"] for commit in commits]
    assert {(state["iterations"], state["drift"]["wants_refresh"]) for state in states} == {(2, True)}
    assert lab.start("actor", *settings) == 0
    [run] = (lab.run_dir / "refresh").glob("*/critic_report")
    judged = Artifact.open(run.parent, "critic_report")
    values = lab.artifact("actor").table("values").to_pylist()
    iteration = {r.rollout_id: r.iteration for r in lab.rollouts("actor")}
    used = {(iteration[row["rollout_id"]], row["critic"]) for row in values}
    old, new = (
        a.report["critic_digest"] for a in (lab.artifact("critic"), Artifact.open(run.parent, "critic"))
    )
    assert used == {(0, old), (1, old), (2, new)}
    assert lab.artifact("actor").report["refreshes"] == [f"refresh/{run.parent.name}"]
    assert judged.report["policy_digest"] == next(
        r.policy_digest for r in lab.rollouts("actor") if r.iteration == 2
    )


def asked_to_stop(*arguments: Any) -> Any:
    raise StopRequested(signal.SIGTERM)
