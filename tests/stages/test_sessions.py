"""Recorded sessions through the chain: exported, imitated, valued by a critic of who was recorded."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import critics
from env.play.demonstrations import Demonstration
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from pipeline.models.policy import load_policy
from stages.command import main
from stages.wiring.sft_data import encode
from tests.stages.conftest import Lab, make_lab

PLAYED = ("rollouts.chain={num_attempts: 1, draws: 4, feedback_free_share: 0, feedback_free_draws: 1}",)
OFFLINE = (
    *("--run", "offline", "rollouts.num_tasks=0", "labels={num_continuations: 0}"),
    "rollouts.solutions=FOLDER/sessions/sessions.jsonl",
    "sft.data={source: FOLDER/sessions/sessions.jsonl, above: null}",
    *("sft.num_updates=60", "critic.batch_states=32", "critic.max_epochs=1"),
    "sampling.max_response_tokens=512",  # its tokenizer is another one
)
STORED = ("stored.learning_rate=1e-3", "stored.batch_rows=16", "stored.max_epochs=2")
WEAK = "stored.objective.on_weak_critic=allow"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A run that was played and exported, and one that has its sessions alone, up to the critic."""
    made = make_lab(tmp_path_factory.mktemp("sessions"))
    for stage in ("tasks", "sft", "rollouts"):
        assert made.start(stage, *PLAYED) == 0, stage
    assert main(["export", str(made.run_dir), "--to", "sessions", str(made.folder / "sessions")]) == 0
    file = made.folder / "sessions" / "sessions.jsonl"
    with file.open("a") as lines:
        lines.write('{"task_id": "nobody\'s", "messages": [], "reward": 1}\nno JSON\n')
    shutil.copytree(made.run_dir / "tasks", made.folder / "offline" / "tasks")
    for stage in ("sft", "rollouts", "labels", "critic"):
        assert made.start(stage, *offline(made)) == 0, stage
    return made


def offline(lab: Lab, *more: str) -> list[str]:
    return [word.replace("FOLDER", str(lab.folder)) for word in (*OFFLINE, *more)]


def opened(lab: Lab, stage: str, run: str = "offline") -> Artifact:
    return Artifact.open(lab.folder / run, stage)


def test_sessions_are_the_rollouts_that_were_played_but_for_what_nobody_records(lab: Lab) -> None:
    played = {r.rollout_id: r for r in lab.rollouts("rollouts")}
    table, counts = opened(lab, "rollouts").table("rollouts"), opened(lab, "rollouts").manifest["counts"]
    assert table.num_rows == len(played) > 40
    assert counts["planned"] == counts["done"] + sum(counts["skipped"].values())
    assert counts["skipped"] == {"bad_messages": 1, "no_json": 1}
    assert set(table.column("kind").to_pylist()) == {"recorded"}
    assert not any(table.column("logprobs").to_pylist())

    def told(rewards: Any, messages: Any) -> Counter[Any]:
        texts = (tuple(m["content"] for m in of) for of in messages)
        return Counter(zip(rewards, texts, strict=True))

    assert told(*(table.column(name).to_pylist() for name in ("reward", "messages"))) == told(
        [r.reward for r in played.values()], [r.messages for r in played.values()]
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


def test_behaviour_is_cloned_whatever_it_earned_and_by_default_the_good_alone(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    data, rows = opened(lab, "sft").report["data"], lab.artifact("rollouts").table("rollouts").num_rows
    assert data["by_calls"] == {"0": rows}
    assert data["left_out"] == {"bad_messages": 1, "no_json": 1}
    won = sum(r.reward == 1 for r in lab.rollouts("rollouts"))
    assert opened(lab, "sft").report["success"] == pytest.approx(won / rows)
    shutil.copytree(lab.run_dir / "tasks", lab.folder / "good" / "tasks")
    more = ("--run", "good", f"sft.data={lab.folder}/sessions/sessions.jsonl", "sft.num_updates=2")
    assert lab.start("sft", *more) == 0
    good = opened(lab, "sft", "good")
    assert good.report["data"]["by_calls"] == {"0": won}
    assert good.report["data"]["left_out"]["low_reward"] == rows - won > 0
    lines = (good.folder / "left_out.jsonl").read_text("utf-8").splitlines()
    kinds = Counter(json.loads(line)["kind"] for line in lines)
    assert kinds == good.report["data"]["left_out"]


@pytest.mark.parametrize("kind", ["v_dapo", "advantage_weighted", "likelihood"])
def test_the_stored_phase_learns_from_them_by_the_critic_of_who_was_recorded(lab: Lab, kind: str) -> None:
    weak = () if kind == "likelihood" else (WEAK,)
    if (lab.folder / "offline" / "stored").exists():
        shutil.rmtree(lab.folder / "offline" / "stored")
    assert lab.start("stored", *offline(lab, *STORED, f"stored.objective.kind={kind}", *weak)) == 0
    stored = opened(lab, "stored")
    report, rows = stored.report, stored.report["rows"]
    assert rows["recorded"] == rows["bare"] > 0
    total = rows["bare"] + rows["held_out"] + sum(rows["left_out"].values())
    assert total == opened(lab, "rollouts").table("rollouts").num_rows
    assert "critic_report" not in stored.manifest["inputs"]
    if kind != "likelihood":
        gate = report["critic_gate"]
        assert gate["judged_by"] == "outcomes"
        assert {"skill_over_constant", "skill_over_position"} < set(gate)
    if kind == "v_dapo":
        assert rows["compared"]["alone"] + rows["compared"]["in_groups"] == rows["bare"]
        updates = [m for m in read_metrics(stored.folder / "metrics.jsonl") if "loss" in m]
        assert updates[0]["old_kl"] == pytest.approx(0, abs=1e-5)  # ratios begin at 1
    assert load_policy(stored.path("policy")).tokenizer_digest


def test_a_weak_critic_of_theirs_is_refused_and_says_what_would_do(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(lab.folder / "offline", lab.folder / "weak", ignore=shutil.ignore_patterns("stored"))
    words = ["weak" if word == "offline" else word for word in offline(lab, *STORED)]
    assert lab.start("stored", *words, "stored.objective.kind=v_dapo") == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "the critic's gate failed: " in said
    assert "stored.objective.on_weak_critic to allow" in said


def test_the_critic_is_of_who_was_recorded(lab: Lab) -> None:
    critic = critics.load(opened(lab, "critic").path("critic"))
    digests = set(opened(lab, "rollouts").table("rollouts").column("policy_digest").to_pylist())
    assert digests == {critic.contract.label_policy_digest}


def test_a_stored_phase_that_is_killed_goes_on_and_ends_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = []
    for run, fails in (("once", ()), ("killed", ("stored.update.after:4=raise",))):
        shutil.copytree(lab.folder / "offline", lab.folder / run, ignore=shutil.ignore_patterns("stored"))
        words = [run if word == "offline" else word for word in offline(lab, *STORED)]
        words += ["stored.objective.kind=v_dapo", WEAK]
        for failpoint in fails:
            monkeypatch.setenv("VDAPO_FAILPOINTS", failpoint)
            assert lab.start("stored", *words) == 1
            monkeypatch.delenv("VDAPO_FAILPOINTS")
        assert lab.start("stored", *words) == 0
        report = opened(lab, "stored", run).report
        ends.append((report["looks"], load_policy(opened(lab, "stored", run).path("policy")).policy_digest))
    assert ends[0] == ends[1]
