"""Recorded sessions through the chain: exported, imitated, valued by a critic of who was recorded."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import critics
from env.play.demonstrations import Demonstration
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from pipeline.models.policy import load_policy
from pipeline.types import Rollout
from stages.command import main
from stages.wiring.inputs import rollouts_of
from stages.wiring.sft_data import encode
from tests.stages.conftest import Lab

OFFLINE = (
    *("rollouts.num_tasks=0", "labels={num_continuations: 0}"),
    "critic={fit_share: 0.3, validate_share: 0.4, head_updates: 2, batch_states: 32, max_epochs: 1}",
    "stored={objective: {kind: v_dapo}, learning_rate: 1.0e-3, batch_rows: 8, max_epochs: 2}",
)
WEAK = "stored.objective.on_weak_critic=allow"


def offline(lab: Lab, stage: str, *more: str, run: str = "offline") -> int:
    """Makes a stage of a run that has the recorder's weights and its sessions alone."""
    base, sessions = lab.run_dir / "sft" / "policy", lab.folder / "sessions" / "sessions.jsonl"
    agent = (f"sft.base={base}", "sft.num_updates=0", f"rollouts.solutions={sessions}")
    return lab.start(stage, "--run", run, *OFFLINE, *agent, *more)


def without(lab: Lab, run: str, *stages: str) -> None:
    """Copies the offline run but for some stages."""
    shutil.copytree(lab.folder / "offline", lab.folder / run, ignore=shutil.ignore_patterns(*stages))


@pytest.fixture(scope="module")
def lab(chain: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A run that was played and exported, and one of its sessions alone, up to the stored phase."""
    made = chain.copy(tmp_path_factory.mktemp("sessions"), "tasks", "sft", "rollouts")
    assert main(["export", str(made.run_dir), "--to", "sessions", str(made.folder / "sessions")]) == 0
    with (made.folder / "sessions" / "sessions.jsonl").open("a") as lines:
        lines.write('{"task_id": "nobody\'s", "messages": [], "reward": 1}\nno JSON\n')
    shutil.copytree(made.run_dir / "tasks", made.folder / "offline" / "tasks")
    for stage in ("sft", "rollouts", "labels", "critic", "stored"):
        assert offline(made, stage, WEAK) == 0, stage
    return made


def bare(lab: Lab) -> list[Rollout]:
    return [r for r in lab.rollouts("rollouts") if r.kind == "whole" and not r.guided]


def opened(lab: Lab, stage: str, run: str = "offline") -> Artifact:
    return Artifact.open(lab.folder / run, stage)


def test_sessions_are_the_rollouts_that_were_played_but_for_what_nobody_records(lab: Lab) -> None:
    table, counts = opened(lab, "rollouts").table("rollouts"), opened(lab, "rollouts").manifest["counts"]
    assert table.num_rows == len(bare(lab)) > 30
    assert counts["planned"] == counts["done"] + sum(counts["skipped"].values())
    assert counts["skipped"] == {"bad_messages": 1, "no_json": 1}
    assert set(table.column("kind").to_pylist()) == {"recorded"}
    assert not any(table.column("logprobs").to_pylist())

    def told(rewards: Any, messages: Any) -> Counter[Any]:
        texts = (tuple(m["content"] for m in of) for of in messages)
        return Counter(zip(rewards, texts, strict=True))

    assert told(*(table.column(name).to_pylist() for name in ("reward", "messages"))) == told(
        [r.reward for r in bare(lab)], [r.messages for r in bare(lab)]
    )


def test_what_is_not_to_be_learnt_weighs_nothing_and_a_class_weighs_all_of_it() -> None:
    def letters(texts: list[str], **_: bool) -> dict[str, list[list[Any]]]:
        places = [[(at, at + 1) for at in range(len(text))] for text in texts]
        return {"input_ids": [list(map(ord, text)) for text in texts], "offset_mapping": places}

    pieces = (("ask", False), ("bad", True), ("call", True), ("no", False), ("good", True))
    shown = Demonstration("recorded", pieces, True, False, unlearnt=((1, 0, 3),), weight=2.0)
    ids, weights = encode(letters, shown, 0.5)
    assert "".join(map(chr, ids)) == "askbadcallnogood"
    assert weights == [1.0] * 3 + [0.0] * 3 + [2.0] * 4 + [1.0] * 2 + [2.0] * 4


def test_behaviour_is_cloned_whatever_it_earned_and_by_default_the_good_alone(lab: Lab) -> None:
    rows, won = len(bare(lab)), sum(r.reward == 1 for r in bare(lab))
    bad = {"bad_messages": 1, "no_json": 1}
    for run, above, number, left_out in (
        ("cloned", ", above: null", rows, bad),
        ("good", "", won, bad | {"low_reward": rows - won}),
    ):
        shutil.copytree(lab.run_dir / "tasks", lab.folder / run / "tasks")
        data = f"sft.data={{source: {lab.folder}/sessions/sessions.jsonl{above}}}"
        assert lab.start("sft", "--run", run, data, "sft.num_updates=2") == 0
        made = opened(lab, "sft", run)
        assert made.report["data"]["by_calls"] == {"0": number}
        assert made.report["success"] == pytest.approx(won / number)
        lines = (made.folder / "left_out.jsonl").read_text("utf-8").splitlines()
        assert made.report["data"]["left_out"] == left_out
        assert Counter(json.loads(line)["kind"] for line in lines) == left_out
    assert 0 < won < rows


def test_the_stored_phase_learns_from_them_by_the_critic_of_who_was_recorded(lab: Lab) -> None:
    stored, rows = opened(lab, "stored"), opened(lab, "stored").report["rows"]
    assert rows["recorded"] == rows["bare"] > 0
    assert rows["bare"] + rows["held_out"] + sum(rows["left_out"].values()) == len(bare(lab))
    assert rows["compared"]["alone"] + rows["compared"]["in_groups"] == rows["bare"] + rows["held_out"]
    gate = stored.report["critic_gate"]
    assert gate["judged_by"] == "outcomes"
    assert {"skill_over_constant", "skill_over_position"} < set(gate)
    assert "critic_report" not in stored.manifest["inputs"]
    critic = critics.load(opened(lab, "critic").path("critic"))
    digests = set(opened(lab, "rollouts").table("rollouts").column("policy_digest").to_pylist())
    assert digests == {critic.contract.label_policy_digest}
    updates = [m for m in read_metrics(stored.folder / "metrics.jsonl") if "loss" in m]
    assert updates[0]["old_kl"] == pytest.approx(0, abs=1e-5)  # ratios begin at 1
    assert load_policy(stored.path("policy")).tokenizer_digest == critic.contract.tokenizer_digest


def test_sessions_of_an_earlier_week_in_the_buffer_are_learnt_from_and_judge_no_critic(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_week(source: Any) -> list[Rollout]:
        found = rollouts_of(source)
        return [*(replace(r, rollout_id="old", policy_digest="recorded:old") for r in found[:1]), *found]

    without(lab, "weeks", "stored")
    monkeypatch.setattr("stages.wiring.stored_data.rollouts_of", with_another_week)
    assert offline(lab, "stored", WEAK, run="weeks") == 0
    mine, alone = (opened(lab, "stored", run).report for run in ("weeks", "offline"))
    assert mine["critic_gate"] == alone["critic_gate"]


def test_a_weak_critic_of_theirs_is_refused_and_says_what_would_do(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    without(lab, "weak", "stored")
    assert offline(lab, "stored", run="weak") == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "the critic's gate failed: " in said
    assert "stored.objective.on_weak_critic to allow" in said


def test_a_stored_phase_that_is_killed_goes_on_and_ends_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(lab, "killed", "stored")
    monkeypatch.setenv("VDAPO_FAILPOINTS", "stored.update.after:3=raise")
    assert offline(lab, "stored", WEAK, run="killed") == 1
    monkeypatch.delenv("VDAPO_FAILPOINTS")
    assert offline(lab, "stored", WEAK, run="killed") == 0
    whole, again = (opened(lab, "stored", run) for run in ("offline", "killed"))
    assert again.report["looks"] == whole.report["looks"]
    digests = {load_policy(stored.path("policy")).policy_digest for stored in (whole, again)}
    assert len(digests) == 1
