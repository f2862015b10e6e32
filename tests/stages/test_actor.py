import json
import os
import signal
from dataclasses import replace
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest

import stages.wiring.agreement
import stages.wiring.learner
import stages.wiring.sampling
from env.play.units import Played
from pipeline.artifacts.metrics import read_metrics
from pipeline.credit.updates import BaselineSets, Update
from pipeline.engines.transformers import TransformersEngine
from pipeline.errors import ArtifactError, ConfigError, ExitCode
from pipeline.models.policy import load_policy
from pipeline.types import Event
from stages.settings.sampling import Chain
from stages.wiring.actor_report import actor_page, actor_report
from stages.wiring.iteration import Iterations
from stages.wiring.refusals import contexts_of, override_words, refuse_failing_environment, stamp_of
from stages.wiring.sampling import Sampling
from tests.stages.conftest import CRITIC, Lab


def updates_of(lab: Lab) -> list[dict[str, Any]]:
    return [entry for entry in read_metrics(lab.run_dir / "actor" / "metrics.jsonl") if "update" in entry]


def gate_of(lab: Lab) -> dict[str, Any]:
    return json.loads(lab.artifact("critic_report").path("gate.json").read_text())


def test_a_critic_whose_gate_failed_is_refused_or_has_no_weight(chain):
    gate = gate_of(chain)
    assert not gate["passed"]  # nothing this small can pass
    with pytest.raises(ArtifactError, match=r"the critic's gate failed: .*group_only") as raised:
        chain.plan("actor", "actor.credit.on_weak_critic=refuse")
    assert raised.value.code == 4
    assert gate["reasons"][0] in str(raised.value)
    alphas = [
        chain.plan("actor", f"actor.credit.on_weak_critic={does}").work.credit.alpha
        for does in ("group_only", "allow")
    ]
    assert alphas == [0.0, 0.5]


def test_a_mode_without_a_critic_needs_none_and_its_run_has_a_summary(chain, tmp_path):
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    settings = ["actor.credit={mode: grpo}", "actor.num_iterations=1", "run.held_out=[val]"]
    for stage in ("actor", "evaluation", "summary"):
        assert lab.start(stage, *settings) == 0
    artifact = lab.artifact("actor")
    assert set(artifact.manifest["inputs"]) == {"tasks", "sft"}
    assert artifact.table("values").num_rows == 0
    assert artifact.report["updates"] == len(updates_of(lab)) >= 1
    summary = json.loads((lab.run_dir / "summary.json").read_text())
    assert summary["critic"] is None
    assert "test_unseen_company" not in summary["by_slice"]
    assert set(summary["budget"]["by_stage"]) == {"actor"}


@pytest.mark.parametrize("by", ["engine_trainer_gap", "logprob_gap"])
def test_stale_weights_are_found_before_anything_is_kept_or_trained_on(
    chain, tmp_path, monkeypatch, capsys, by
):
    """By the probe, and by what was sampled: each alone."""

    def only_the_name(engine, weights, policy_digest):
        engine.policy_digest = policy_digest

    other = {"engine_trainer_gap": "logprob_gap", "logprob_gap": "engine_trainer_gap"}[by]
    monkeypatch.setattr(stages.wiring.agreement, other, lambda *_: 0.0)
    monkeypatch.setattr(TransformersEngine, "load_weights", only_the_name)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    far = ["actor.learning_rate=0.01", "actor.stops=false"]
    assert lab.start("actor", "actor.credit={mode: grpo}", *far) == 4
    error = capsys.readouterr().err
    assert "iteration 1: engine and trainer differ by" in error
    assert "Nothing was trained" in error
    assert {entry["iteration"] for entry in updates_of(lab)} == {0}
    assert max(state["iterations"] for state in lab.checkpoints("actor")) == 1
    assert not (lab.run_dir / "actor" / "manifest.json").exists()
    shards = list((lab.run_dir / "actor" / "shards").glob("*rollouts*"))
    assert len(shards) == 1  # what was sampled with them was not committed


def test_a_last_look_by_stale_weights_is_not_kept_and_taken_again(chain, tmp_path, monkeypatch, capsys):
    load, digests = TransformersEngine.load_weights, []

    def stale_at_last(engine, weights, policy_digest):
        digests.append(policy_digest)
        if len(digests) == 1:
            load(engine, weights, policy_digest)
        else:
            engine.policy_digest = policy_digest

    settings = ["actor.credit={mode: grpo}", "actor.learning_rate=0.01", "actor.stops=false"]
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    with monkeypatch.context() as patch:
        patch.setattr(TransformersEngine, "load_weights", stale_at_last)
        assert lab.start("actor", *settings, "actor.num_iterations=1") == 4
    assert "iteration 1: engine and trainer differ by" in capsys.readouterr().err
    assert not (lab.run_dir / "actor" / "manifest.json").exists()
    assert lab.start("actor", *settings, "actor.num_iterations=1") == 0
    assert lab.artifact("actor").report["last_look"]["iteration"] == 1


@pytest.mark.parametrize("stage", ["actor", "evaluation"])
def test_the_scripted_engine_is_refused_where_weights_matter(chain, stage):
    with pytest.raises(ConfigError, match=r"engine.kind = scripted .*Allowed here: transformers"):
        chain.plan(stage, "engine.kind=scripted")


def test_a_gate_that_never_judged_states_after_feedback_lets_no_actor_train_on_them_unless_told_to():
    """Guided states are trained on where a chain has second attempts."""
    bare, guided = contexts_of(Chain(num_attempts=1)), contexts_of(Chain(feedback_free_share=0.5))
    assert (bare, guided) == (("bare",), ("bare", "guided"))
    assert contexts_of(Chain(num_attempts=2, feedback_free_share=1.0)) == bare
    passed = {"verdict": "PASS", "reasons": [], "contexts": ["bare"]}
    sound = {"verdict": "PASS", "reasons": [], "override": None}
    with pytest.raises(ArtifactError, match="states after feedback were not judged"):
        stamp_of(passed, guided, "refuse")
    for does in ("refuse", "allow", "group_only"):
        assert stamp_of(passed, bare, does) == sound
        assert stamp_of({**passed, "contexts": list(guided)}, guided, does) == sound
    assert override_words(sound) == ""
    for does in ("allow", "group_only"):
        stamp = stamp_of(passed, guided, does)
        assert stamp["override"] == does
        words = override_words(stamp)
        assert "states after feedback were not judged" in words
        assert f"actor.credit.on_weak_critic is {does}" in words
    assert 'class="fail"' not in actor_page(actor_report([], 1, critic_gate=sound))


def test_an_actor_that_went_on_with_a_weak_critic_says_so_everywhere(chain):
    stamp = chain.artifact("actor").report["critic_gate"]
    assert stamp == {"verdict": "FAIL", "reasons": gate_of(chain)["reasons"], "override": "allow"}
    words = override_words(stamp)
    assert stamp["reasons"][0] in words
    html = unescape((chain.run_dir / "actor" / "report.html").read_text("utf-8"))
    assert html[html.index("<p class=") :].startswith(f'<p class="fail">{words}</p>')
    assert words in next((chain.run_dir / "actor" / "logs").glob("*/stage.log")).read_text("utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contexts": ("bare",)}, "made for contexts ('bare',), got ['guided']"),
        ({"gamma": 0.9}, "was made for gamma 0.9, got 1.0"),
        (
            {"privileged": "words"},
            "critic.privileged = words, this run says none. Next: critic.privileged=words",
        ),
    ],
)
def test_a_critic_of_another_contract_is_never_allowed(chain, tmp_path, monkeypatch, capsys, changes, words):
    load = stages.wiring.learner.load_critic

    def other_critic(config, folder):
        critic = load(config, folder)
        critic.contract = replace(critic.contract, **changes)
        return critic

    monkeypatch.setattr(stages.wiring.learner, "load_critic", other_critic)
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    assert lab.start("actor", "actor.credit.on_weak_critic=allow") == 3
    assert words in capsys.readouterr().err
    assert updates_of(lab) == []


@pytest.fixture
def stopped(chain, tmp_path, monkeypatch):
    """Returns a lab whose actor is asked to stop while it samples its second iteration."""
    collect = Sampling.collect

    def asked_to_stop(sampling, team, credit, values_of, iteration, **options):
        if iteration == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return collect(sampling, team, credit, values_of, iteration, **options)

    def start(*options):
        lab = chain.copy(tmp_path / "lab", *CRITIC)
        with monkeypatch.context() as patch:
            patch.setattr(Sampling, "collect", asked_to_stop)
            assert lab.start("actor", *options) == 75
        return lab

    return start


def test_a_stop_keeps_every_finished_iteration(chain, stopped):
    seldom = "actor.checkpoint_every=100"
    lab = stopped(seldom)
    assert [state["iterations"] for state in lab.checkpoints("actor")] == [1]
    assert lab.start("actor", seldom) == 0
    assert lab.artifact("actor").content_digest == chain.artifact("actor").content_digest


@pytest.mark.parametrize(("nth_update", "kept"), [(3, [1]), (4, [])])
def test_a_refusal_keeps_what_was_finished_and_nothing_half_done(
    chain, tmp_path, monkeypatch, nth_update, kept
):
    """The second iteration's updates are the third and the fourth: after one, weights are of no iteration."""
    updated, taken = Iterations._updated, []

    def refused(*arguments):
        taken.append(1)
        if len(taken) == nth_update:
            raise ArtifactError("nothing to learn", code=ExitCode.QUALITY)
        return updated(*arguments)

    lab, seldom = chain.copy(tmp_path / "lab", *CRITIC), "actor.checkpoint_every=100"
    with monkeypatch.context() as patch:
        patch.setattr(Iterations, "_updated", refused)
        assert lab.start("actor", seldom) == 4
    assert [state["iterations"] for state in lab.checkpoints("actor")] == kept
    assert lab.start("actor", seldom) == 0
    assert lab.artifact("actor").content_digest == chain.artifact("actor").content_digest


def test_iterations_without_anything_to_train_on_are_counted_across_a_stop(stopped, monkeypatch, capsys):
    monkeypatch.setattr(BaselineSets, "updates", lambda batch, num, **_: [Update([], [], 0, 0)] * num)
    monkeypatch.setattr("stages.wiring.refusals.MAX_EMPTY_ITERATIONS", 2)
    lab = stopped()
    assert lab.start("actor") == 4
    assert "iteration 1: 2 iterations running had nothing to train on" in capsys.readouterr().err
    assert lab.start("actor", "actor.stops=false") == 0


def test_an_environment_that_fails_too_often_is_refused(chain, monkeypatch):
    rollouts = (chain.rollouts("rollouts") * 2)[:50]
    gone = (Event("infra_error", 0, detail="verdict: gone"),)
    ungraded = [replace(rollout, reward=None, events=gone) for rollout in rollouts]
    refuse_failing_environment(ungraded[:1] + rollouts[1:], 0)
    said = r"2 of 50 rollouts could not be graded; .* Most often: verdict: gone\."
    with pytest.raises(ArtifactError, match=said) as raised:
        refuse_failing_environment(ungraded[:2] + rollouts[2:], 0)
    assert raised.value.code == 5
    team: Any = SimpleNamespace(play=lambda *_: Played(ungraded, {}))
    tasks = list(chain.tasks().values())
    sampling = Sampling(tasks, tasks, Chain(), 100, 0, "key", lambda _: None)
    monkeypatch.setattr(stages.wiring.sampling, "in_plan_order", lambda played, _: played)
    with pytest.raises(ArtifactError, match="could not be graded"):
        sampling.look_at_val(team, 0)


def test_the_actor_s_page_tells_what_the_manifests_tell(chain):
    actor = chain.artifact("actor")
    card = actor.path("actor/README.md").read_text("utf-8")
    facts = {f"content of {name}": f"`{digest}`" for name, digest in actor.manifest["inputs"].items()}
    facts |= {"gate": gate_of(chain)["verdict"], "weight of the critic (alpha)": "0.5", "num train": "24"}
    facts["updates"] = f"{actor.report['updates']} in 2 iterations of fresh rollouts"
    assert [name for name, value in facts.items() if f"| {name} | {value} |" not in card] == []
    assert "| credit | v_dapo: " in card
    assert str(chain.folder) not in card


def test_an_actor_that_moved_too_far_is_stopped(chain, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("stages.wiring.safety_stops.MAX_KL", 1e-12)
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    assert lab.start("actor") == 4
    assert "KL to the policy that it began with is" in capsys.readouterr().err
    done = updates_of(lab)
    assert {entry["iteration"] for entry in done} == {0}
    assert lab.start("actor") == 4
    assert updates_of(lab) == done  # nothing was made again
    assert lab.start("actor", "actor.stops=false") == 0
    assert {entry["iteration"] for entry in updates_of(lab)} == {0, 1}


def test_looks_at_val_are_kept_task_by_task_and_the_last_is_at_the_exported_weights(chain):
    actor = chain.artifact("actor")
    looks = actor.table("looks").to_pylist()
    val = [name for name, task in chain.tasks().items() if task.split == "val"][:4]
    assert sorted((look["iteration"], look["task_id"]) for look in looks) == sorted(
        (iteration, name) for iteration in (0, 2) for name in val
    )
    first, last = ({x["policy_digest"] for x in looks if x["iteration"] == i} for i in (0, 2))
    assert first == {load_policy(chain.artifact("sft").path("policy")).policy_digest}
    assert last == {load_policy(actor.path("actor")).policy_digest}
    rewards = [look["reward"] for look in looks if look["iteration"] == 0]
    assert actor.report["learning"][0]["val"] == pytest.approx(sum(rewards) / 4)
    rewards = [look["reward"] for look in looks if look["iteration"] == 2]
    assert actor.report["last_look"] == {"iteration": 2, "val": pytest.approx(sum(rewards) / 4)}
    lines = read_metrics(chain.run_dir / "actor" / "metrics.jsonl")
    ends = [line for line in lines if "rollouts/count" in line]
    assert all(line["seconds"] > 0 for line in ends)
    assert [entry["iteration"] for entry in actor.report["time"]] == [line["iteration"] for line in ends]
    for line, entry in zip(ends, actor.report["time"], strict=True):
        parts = {"hand_off", "evaluation", "sampling", "scoring", "logprobs", "commit", "update", "other"}
        parts -= {"evaluation"} if "val/first_try" not in line else set()
        assert parts <= entry.keys() <= parts | {"drift_checks", "save", "turns", "iteration"}
        assert all(entry[part] > 0 for part in parts)
        without_looks = sum(entry.values()) - entry["iteration"] - entry.get("evaluation", 0)
        assert without_looks >= line["seconds"]  # which begin after the look
        assert line["perf/sampled_tokens_per_s"] == line["rollouts/sampled_tokens"] / entry["sampling"]
        assert line["perf/trained_tokens_per_s"] > 0
        assert line["perf/host_peak_gib"] >= line["perf/host_gib"] > 0.1
        assert not {name for name in line if name.startswith(("perf/mfu", "perf/gpu"))}
    assert "Where the time of each iteration went" in (actor.folder / "report.html").read_text()
