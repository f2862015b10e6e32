"""The actor's refusals and its other credit modes."""

import json
import os
import re
import signal
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stages.wiring.learner
import stages.wiring.sampling
from env.play.units import Played
from pipeline.artifacts.metrics import read_metrics
from pipeline.credit.batch import Batch, Update
from pipeline.errors import ArtifactError, ConfigError
from stages.settings.sampling import Chain
from stages.settings.training import Deepspeed, Torch
from stages.wiring.actor_page import actor_page
from stages.wiring.actor_report import actor_report
from stages.wiring.cards import _trainer
from stages.wiring.refusals import (
    contexts_of,
    gate_allows,
    override_words,
    refuse_failing_environment,
    stamp_of,
)
from stages.wiring.sampling import Sampling

CRITIC = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")


def updates_of(lab: Any) -> list[dict[str, Any]]:
    return [entry for entry in read_metrics(lab.run_dir / "actor" / "metrics.jsonl") if "update" in entry]


def test_a_critic_whose_gate_failed_is_refused_or_has_no_weight(chain: Any) -> None:
    gate = json.loads((chain.run_dir / "critic_report" / "gate.json").read_text())
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


def test_a_mode_without_a_critic_needs_none_and_its_run_has_a_summary(chain: Any, tmp_path: Path) -> None:
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


def test_v_dapo_without_a_critic_names_the_stage_to_run(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    assert lab.start("actor") == 3
    assert "Run: make critic" in capsys.readouterr().err


def test_stale_weights_in_the_engine_are_found_before_anything_is_trained_on_them(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.engines.transformers import TransformersEngine

    def only_the_name(engine: Any, weights: Any, policy_digest: str) -> None:
        engine.policy_digest = policy_digest

    monkeypatch.setattr(TransformersEngine, "load_weights", only_the_name)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    stale = [
        "actor.credit={mode: grpo}",
        "actor.learning_rate=0.01",
        "actor.stops={max_kl: null, max_length_change: null}",
    ]
    assert lab.start("actor", *stale) == 4
    error = capsys.readouterr().err
    assert "iteration 1: engine and trainer differ by" in error
    assert "Nothing was trained" in error
    assert {entry["iteration"] for entry in updates_of(lab)} == {0}
    checkpoints = (lab.run_dir / "actor" / "checkpoints").iterdir()
    states = [json.loads((p / "commit.json").read_text()) for p in checkpoints]
    assert max(state["state"]["iterations"] for state in states) == 1
    assert not (lab.run_dir / "actor" / "manifest.json").exists()
    shards = list((lab.run_dir / "actor" / "shards").glob("*rollouts*"))
    assert len(shards) == 1  # the probe spoke before anything was sampled with them


@pytest.mark.parametrize("stage", ["actor", "evaluation"])
def test_the_scripted_engine_is_refused_where_weights_matter(chain: Any, stage: str) -> None:
    with pytest.raises(ConfigError, match=r"engine.kind = scripted .*Allowed here: transformers"):
        chain.plan(stage, "engine.kind=scripted")


def test_a_gate_that_never_judged_states_after_feedback_does_not_let_an_actor_train_on_them() -> None:
    gate = {"reasons": [], "contexts": ["bare"]}
    guided = ("bare", "guided")
    assert gate_allows(gate, ("bare",), "refuse")
    assert gate_allows({**gate, "contexts": ["bare", "guided"]}, guided, "refuse")
    with pytest.raises(ArtifactError, match="states after feedback were not judged"):
        gate_allows(gate, guided, "refuse")
    assert not gate_allows(gate, guided, "group_only")


def test_an_actor_that_went_on_with_a_weak_critic_says_so_everywhere(chain: Any) -> None:
    gate = json.loads((chain.run_dir / "critic_report" / "gate.json").read_text())
    stamp = chain.artifact("actor").report["critic_gate"]
    assert stamp == {"verdict": "FAIL", "reasons": gate["reasons"], "override": "allow"}
    words = override_words(stamp)
    assert gate["reasons"][0] in words
    assert "actor.credit.on_weak_critic is allow" in words
    html = (chain.run_dir / "actor" / "report.html").read_text("utf-8")
    first = re.search(r'<p class="(\w+)">(.*?)</p>', html)
    assert first is not None
    assert first[1] == "fail"
    assert unescape(first[2]) == words
    assert words in next((chain.run_dir / "actor" / "logs").glob("*/stage.log")).read_text("utf-8")


@pytest.mark.parametrize("does", ["allow", "group_only"])
def test_the_stamp_names_what_let_training_go_on_and_is_silent_where_nothing_had_to(does: Any) -> None:
    passed = {"verdict": "PASS", "reasons": [], "contexts": ["bare"]}
    bare = stamp_of(passed, ("bare",), does)
    assert bare == {"verdict": "PASS", "reasons": [], "override": None}
    assert override_words(bare) == ""
    assert 'class="fail"' not in actor_page(actor_report([], 1, critic_gate=bare))
    guided = stamp_of(passed, ("bare", "guided"), does)
    assert guided["override"] == does
    assert "states after feedback were not judged" in override_words(guided)
    page = actor_page(json.loads(json.dumps(actor_report([], 1, critic_gate=guided))))
    assert f"actor.credit.on_weak_critic is {does}" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contexts": ("bare",)}, "fitted on ('bare',) states, not on ['guided']"),
        ({"gamma": 0.9}, "was made for gamma 0.9, got 1.0"),
    ],
)
def test_allow_does_not_let_a_critic_in_that_says_nothing_of_what_is_trained_on(
    chain: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    words: str,
) -> None:
    load = stages.wiring.learner.load_critic

    def other_critic(config: Any, folder: Path) -> Any:
        critic = load(config, folder)
        critic.contract = replace(critic.contract, **changes)
        return critic

    monkeypatch.setattr(stages.wiring.learner, "load_critic", other_critic)
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    assert lab.start("actor", "actor.credit.on_weak_critic=allow") == 3
    assert words in capsys.readouterr().err
    assert updates_of(lab) == []


def test_guided_states_are_trained_on_where_a_chain_has_second_attempts() -> None:
    def of(**chain: Any) -> tuple[str, ...]:
        return contexts_of(Chain(**chain))

    assert of(num_attempts=2, feedback_free_share=0.5) == ("bare", "guided")
    assert of(num_attempts=1) == of(num_attempts=2, feedback_free_share=1.0) == ("bare",)


def stopped_in_iteration_1(work: Any) -> Any:
    """A method of `Sampling` in whose iteration 1 the stage is asked to stop."""

    def asked_to_stop(*arguments: Any, **options: Any) -> Any:
        if next(x for x in arguments if isinstance(x, int)) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return work(*arguments, **options)

    return asked_to_stop


def test_a_stop_keeps_every_finished_iteration(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    seldom = "actor.checkpoint_every=100"
    with monkeypatch.context() as patch:
        patch.setattr(Sampling, "collect", stopped_in_iteration_1(Sampling.collect))
        assert lab.start("actor", seldom) == 75
    [commit] = (lab.run_dir / "actor" / "checkpoints").glob("*/commit.json")
    assert json.loads(commit.read_text())["state"]["iterations"] == 1
    assert lab.start("actor", seldom) == 0
    assert lab.artifact("actor").content_digest == chain.artifact("actor").content_digest


def test_updates_without_anything_to_train_on_are_counted_across_a_stop(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Batch, "updates", lambda batch, num, **_: [Update([], [], 0, 0)] * num)
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    two = "actor.updates_per_iteration=2"  # in each of two iterations
    with monkeypatch.context() as patch:
        patch.setattr(Sampling, "collect", stopped_in_iteration_1(Sampling.collect))
        assert lab.start("actor", two) == 75
    assert lab.start("actor", two) == 4
    assert "iteration 1: 3 updates running had nothing to train on" in capsys.readouterr().err


def test_an_environment_that_fails_too_often_is_refused(chain: Any) -> None:
    rollouts = (chain.rollouts("rollouts") * 2)[:50]
    ungraded = [replace(rollout, reward=None) for rollout in rollouts[:2]]
    refuse_failing_environment(ungraded[:1] + rollouts[1:], 0)
    with pytest.raises(ArtifactError, match="2 of 50 rollouts could not be graded") as raised:
        refuse_failing_environment(ungraded + rollouts[2:], 0)
    assert raised.value.code == 5


def test_an_outage_while_looking_at_val_is_no_failure_of_the_actor(
    chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ungraded = [replace(rollout, reward=None) for rollout in chain.rollouts("rollouts")]
    team: Any = SimpleNamespace(play=lambda *_: Played(ungraded, {}))
    tasks = list(chain.tasks().values())
    sampling = Sampling(tasks, tasks, Chain(), 100, 0, "key", lambda _: None)
    monkeypatch.setattr(stages.wiring.sampling, "in_plan_order", lambda played, _: played)
    with pytest.raises(ArtifactError, match="could not be graded"):
        sampling.look_at_val(team, 0, 4)


def test_the_actor_s_page_tells_what_the_manifests_tell(chain: Any) -> None:
    actor = chain.artifact("actor")
    card = actor.path("actor/README.md").read_text("utf-8")
    rows = dict(
        line[2:-2].split(" | ", 1) for line in card.splitlines() if line.startswith("| ") and line != "| | |"
    )
    gate = json.loads(chain.artifact("critic_report").path("gate.json").read_text())
    assert rows["gate"] == gate["verdict"]
    assert rows["credit"].startswith("v_dapo: ")
    assert rows["weight of the critic (alpha)"] == "0.5"
    assert rows["num train"] == "24"
    assert rows["updates"] == f"{actor.report['updates']} in 2 iterations of fresh rollouts"
    for name, digest in actor.manifest["inputs"].items():
        assert rows[f"content of {name}"] == f"`{digest}`"
    assert str(chain.folder) not in card


def test_an_exported_actor_is_sampled_as_it_was_trained(chain: Any) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    from env.phone.episode.compact import CompactStyle

    style, messages = CompactStyle(), [{"role": "user", "content": "R1 dispute a bill at Amber Ridge"}]
    folder = chain.artifact("actor").path("actor")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    settings = GenerationConfig.from_pretrained(folder)
    assert (settings.do_sample, settings.temperature, settings.top_p, settings.top_k) == (True, 1, 1, 0)
    assert settings.eos_token_id == tokenizer.convert_tokens_to_ids(style.stop_token)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == style.render_prompt(messages)


def test_an_actor_that_moved_too_far_is_stopped_behind_a_checkpoint_and_may_be_told_to_go_on(
    chain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", *CRITIC)
    assert lab.start("actor", "actor.stops.max_kl=1e-12") == 4
    assert "KL to the starting policy is" in capsys.readouterr().err
    done = updates_of(lab)
    assert {entry["iteration"] for entry in done} == {0}
    assert lab.start("actor", "actor.stops.max_kl=1e-12") == 4
    assert updates_of(lab) == done  # nothing was made again
    assert lab.start("actor", "actor.stops.max_kl=null") == 0
    assert {entry["iteration"] for entry in updates_of(lab)} == {0, 1}


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (Deepspeed(dtype="bfloat16"), "deepspeed, products in bfloat16"),
        (Torch(lora_rank=4), "torch, products in float32, adapters of rank 4"),
    ],
)
def test_the_card_names_the_trainer_of_any_backend(training: Any, words: str) -> None:
    assert _trainer(training.model_dump()) == words
