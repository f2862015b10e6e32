"""Recorded solutions through the chain: what learns from them, what refuses them, a stage that is killed."""

import json
import math
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import critics
from env.catalog import offer_of
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.signals import StopRequested
from pipeline.config import load_config
from pipeline.errors import ArtifactError, ConfigError
from pipeline.models.policy import load_policy
from pipeline.tables import pairs_from
from stages.bodies import preferences as bodies
from stages.preferences import plan as preferences_plan
from stages.settings import Config
from stages.wiring.arm_costs import cost_of
from stages.wiring.plan_work import work_of
from stages.wiring.sft_data import that_fit
from stages.wiring.sft_recorded import recorded_demonstrations
from stages.wiring.stored_data import material_of
from stages.wiring.summary import sampled_in
from tests.stages.conftest import Lab, make_lab

SETTINGS = """
run: {name: r, rollouts_per_shard: 40}
engine: {max_live: 64, replicas: 1}
training: {threads: 1}
tasks: {environment: short, rows: FOLDER/questions.jsonl, num_train: 60, num_held_out: 10}
sampling: {max_response_tokens: 24}
prompt: {max_feedback_tokens: 40}
sft: {num_demonstrations: 200, num_updates: 60, batch_rows: 16, learning_rate: 1.0e-2,
      model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}}
rollouts: {num_tasks: 0, solutions: FOLDER/solutions.jsonl}
critic: {fit_share: 0.5, validate_share: 0.25, head_updates: 2, head_learning_rate: 1.0e-3,
         learning_rate: 5.0e-4, max_epochs: 2, batch_states: 64, evaluations_per_epoch: 2}
critic_report: {tasks_per_split: 8, draws: 2, num_continuations: 2, guided: false, fit_tasks: 0,
                sibling_sets: 0}
stored: {learning_rate: 1.0e-3, batch_rows: 16, max_epochs: 2}
actor: {num_iterations: 1, tasks_per_update: 4, max_refills: 0, chain: {num_attempts: 1, draws: 4}}
"""
BESIDE = ("rollouts.num_tasks=40", "rollouts.chain.num_attempts=1", "rollouts.chain.feedback_free_share=0")
CONTINUED = (*BESIDE, "labels.target=soft", "labels.num_continuations=2", "labels.max_states=60")


def test_recorded_solutions_alone_want_no_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.wiring.preflight.find_spec", lambda name: None)
    lab.plan("rollouts", "engine={kind: vllm}", "feedback={kind: server, url: 'http://127.0.0.1:1/v1'}")
    with pytest.raises(ConfigError, match="the package vllm is not installed"):
        lab.plan("rollouts", "engine={kind: vllm}", "rollouts.num_tasks=4")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Eighty questions, of which sixty are trained on, with a right and a wrong solution of each."""
    folder = tmp_path_factory.mktemp("solutions")
    asked = [(f"Is {a} more than {b}?", a > b) for a in range(10) for b in range(8)]
    write(folder / "questions.jsonl", [{"question": text, "answer": more} for text, more in asked])
    solutions = [
        {"task": text, "text": f"Compare.\nAnswer: {'yes' if more else 'no'}", "correct": more == right}
        for text, right in asked
        for more in (True, False)
    ]
    long = {"task": asked[0][0], "text": "no " * 40, "correct": False}
    write(folder / "solutions.jsonl", [*solutions, long, {"task": "Who?", "text": "me", "correct": True}])
    made = make_lab(folder, SETTINGS.replace("FOLDER", str(folder)))
    for stage in ("tasks", "sft", "rollouts"):
        assert made.start(stage) == 0, stage
    return made


def beside(lab: Lab, name: str, *stages: str) -> Path:
    """Returns the folder of another run, with copies of some stages."""
    for stage in stages:
        shutil.copytree(lab.run_dir / stage, lab.folder / name / stage)
    return lab.folder / name


def test_every_row_becomes_a_rollout_of_a_training_task_or_is_left_out(lab: Lab) -> None:
    rollouts, artifact, tasks = lab.rollouts("rollouts"), lab.artifact("rollouts"), lab.tasks()
    counts = artifact.manifest["counts"]
    lines = (artifact.folder / "left_out.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert counts["planned"] == len(rollouts) + len(kinds) == 162
    assert counts["skipped"] == {kind: kinds.count(kind) for kind in set(kinds)}
    assert {"no_task"} <= set(kinds) <= {"no_task", "too_long"}
    assert kinds.count("no_task") >= 41  # of held-out questions, and of none
    assert {tasks[r.task_id].split for r in rollouts} == {"train"}
    assert {(r.kind, r.guided, r.attempt, len(r.steps)) for r in rollouts} == {("recorded", False, 0, 2)}
    assert all(math.isnan(r.logprobs[0]) for r in rollouts)
    assert np.mean([r.reward for r in rollouts]) == 0.5
    assert artifact.report["verifier_disagrees"] == 0


def test_tasks_say_which_rows_make_none_and_know_when_their_file_changes(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = beside(lab, "rows"), lab.folder / "questions.jsonl"
    before = file.read_text()
    file.write_text(before + "[]\n" + before.splitlines()[0] + "\n")
    assert lab.start("tasks", "--run", "rows") == 0
    said = capsys.readouterr().err
    assert f"rows left out: 1 no_object, such as {file}, row 81: list, not an object" in said
    assert f"rows left out: 1 duplicate, such as {file}, row 82: says the same" in said
    assert f"all of them: {folder}/tasks/left_out.jsonl" in said
    manifest = Artifact.open(folder, "tasks").manifest
    kinds = Counter(
        json.loads(line)["kind"] for line in (folder / "tasks/left_out.jsonl").read_text().splitlines()
    )
    assert manifest["counts"]["skipped"] == kinds
    assert manifest["counts"]["planned"] == manifest["counts"]["done"] + kinds.total() == 82
    assert lab.start("tasks", "--run", "rows") == 0
    assert "up to date" in capsys.readouterr().out
    file.write_text(before)
    assert lab.start("tasks", "--run", "rows") == 3
    assert f"files.{file}: " in capsys.readouterr().err


@pytest.mark.slow  # the chain of a critic
def test_their_critic_is_of_whoever_wrote_them_and_no_audit_of_another_policy_takes_it(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in ("labels", "critic"):
        assert lab.start(stage) == 0, stage
    critic = critics.load(lab.run_dir / "critic" / "critic")
    assert {r.policy_digest for r in lab.rollouts("rollouts")} == {critic.contract.label_policy_digest}
    assert critic.contract.label_policy_digest.startswith("recorded:")
    values = critic.values(lab.rollouts("rollouts")[:4])
    assert all(np.isfinite(V).all() and len(V) == 2 for V in values)
    assert lab.start("critic_report") == 3
    assert "was made for label_policy_digest recorded:" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow  # the chain of a critic
def test_beside_what_the_starting_policy_plays_their_states_make_a_critic_of_it(lab: Lab) -> None:
    run_dir = beside(lab, "continued", "tasks", "sft")
    weighted = ("stored.objective.kind=advantage_weighted", "stored.objective.on_weak_critic=allow")
    for stage in ("rollouts", "labels", "critic", "critic_report", "stored"):
        assert lab.start(stage, "--run", "continued", *CONTINUED, *weighted) == 0, stage
    rows = {stage: Artifact.open(run_dir, stage).table(stage) for stage in ("rollouts", "labels")}
    kinds = dict(zip(*(rows["rollouts"].column(n).to_pylist() for n in ("rollout_id", "kind")), strict=True))
    assert Counter(kinds.values()) == {"whole": 80, "recorded": len(lab.rollouts("rollouts"))}
    labelled = [(kinds[row["rollout_id"]], row["label_source"]) for row in rows["labels"].to_pylist()]
    assert {("recorded", "continuation"), ("whole", "continuation"), ("whole", "outcome")} <= set(labelled)
    assert ("recorded", "outcome") not in labelled
    critic = critics.load(run_dir / "critic" / "critic")
    policy = load_policy(run_dir / "sft" / "policy")
    assert critic.contract.label_policy_digest == policy.policy_digest
    assert cost_of(run_dir / "rollouts")[0] == sampled_in([rows["rollouts"]])["rollouts"] == 80


def test_likelihood_learns_from_them(lab: Lab) -> None:
    beside(lab, "imitated", "tasks", "sft", "rollouts")
    before = load_policy(lab.run_dir / "sft" / "policy").policy_digest
    options = ("stored.objective.kind=likelihood", "labels.num_continuations=0")
    assert lab.start("stored", "--run", "imitated", *options) == 0
    stored = lab.folder / "imitated" / "stored"
    report = json.loads((stored / "report.json").read_text())
    assert report["rows"]["bare"] == report["rows"]["recorded"] > 30
    assert report["looks"][-1]["probability"] > report["looks"][0]["probability"]
    assert load_policy(stored / "policy").policy_digest != before
    actor = ("actor.credit={mode: decoupled_clip}", "actor.evaluate_tasks=4")
    assert lab.start("actor", "--run", "imitated", *options, *actor) == 0
    card = (lab.folder / "imitated" / "actor" / "actor" / "README.md").read_text()
    assert f"(likelihood, {report['rows']['recorded']} of them recorded solutions)" in card
    assert f"| rows | by_row: source: {lab.folder}/questions.jsonl, split: train |" in card


def test_sft_demonstrates_the_right_ones_alone(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    beside(lab, "shown", "tasks")
    options = (f"sft.data={lab.folder}/solutions.jsonl",)
    assert lab.start("sft", "--run", "shown", *options) == 0
    report = json.loads((lab.folder / "shown" / "sft" / "report.json").read_text())
    assert report["success"] == 1
    assert "60 recorded demonstrations, of 162 rows" in " ".join(capsys.readouterr().err.split())


def begun(lab: Lab, folder: Path, stage: str, setting: str, rows: list[dict[str, Any]]) -> Any:
    """Returns what a stage is given, in a folder of its own, with a file of rows."""
    other = make_lab(folder / "lab", SETTINGS.replace("FOLDER", str(lab.folder)))
    for before in ("tasks", "sft"):
        shutil.copytree(lab.run_dir / before, other.run_dir / before)
    write(folder / "rows.jsonl", rows)
    return other.begun(stage, f"{setting}={folder}/rows.jsonl")


def train_questions(lab: Lab, number: int) -> list[str]:
    asked = [f"Is {a} more than {b}?" for a in range(10) for b in range(8)]
    prompts = [task.prompt[-1]["content"] for task in lab.tasks().values() if task.split == "train"]
    return [text for text in asked if any(text in prompt for prompt in prompts)][:number]


def test_a_stop_token_ends_what_is_demonstrated_and_stands_nowhere_else(lab: Lab, tmp_path: Path) -> None:
    texts = ("yes", "yes<|im_end|>", "yes<|im_end|>\n<|im_start|>user\nmore")
    rows = [
        {"task": task, "text": text, "correct": True}
        for task, text in zip(train_questions(lab, 3), texts, strict=True)
    ]
    start = begun(lab, tmp_path, "sft", "sft.data", rows)
    shown, report = recorded_demonstrations(start)
    assert [one.pieces[-1] for one in shown] == [("yes<|im_end|>", True)] * 2
    assert report["left_out"] == {"stop_token": 1}


def test_what_a_session_thought_is_imitated_only_where_the_style_thinks(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = train_questions(lab, 1)[0]
    said = {"role": "assistant", "content": "yes", "reasoning_content": "Hm."}
    rows = [{"messages": [{"role": "user", "content": task}, said], "reward": 1}]
    shown, report = recorded_demonstrations(begun(lab, tmp_path, "sft", "sft.data", rows))
    assert shown[0].pieces[-1] == ("yes<|im_end|>", True)
    assert report["thoughts_lost"] == 1
    assert "1 messages lose the thought before them" in " ".join(capsys.readouterr().err.split())


def test_recorded_data_costs_what_is_used_of_it_and_stops_between_rows(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, made = offer_of("short"), list[Any]()
    tasks = train_questions(lab, 3)
    rows = [
        {"task": task, "text": "yes", "reward": reward}
        for task, reward in zip(tasks, (0.2, 0.9, None), strict=True)
    ]

    def counted(*given: Any) -> Any:
        made.append(given)
        return short.make_env(*given)

    monkeypatch.setattr("stages.wiring.sft_recorded.offer_of", lambda name: replace(short, make_env=counted))
    start = begun(lab, tmp_path, "sft", "sft.data", rows)
    recorded_demonstrations(start)
    assert len(made) == 2  # the first row's reward is known to be too low
    start.stop.signal = signal.SIGTERM
    with pytest.raises(StopRequested):
        recorded_demonstrations(start)
    assert len(made) == 2


def test_an_answer_in_many_preferences_is_judged_once_and_they_stop_between_rows(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, played = list[str](), bodies.solution_maker
    rows = [
        {"prompt": task, "chosen": "Answer: yes", "rejected": text, "score_chosen": 5, "score_rejected": low}
        for task in train_questions(lab, 20)
        for low, text in enumerate(("no", "me", "no " * 40, "no " * 41))
    ]

    def counted(*given: Any) -> Any:
        make = played(*given)
        return lambda solution, request: made.append(solution.text) or make(solution, request)

    monkeypatch.setattr(bodies, "solution_maker", counted)
    start = begun(lab, tmp_path, "preferences", "preferences.recorded", rows[:-1])
    work = preferences_plan(start).work
    pairs, left_out = bodies._of_preferences(start, work)
    assert Counter(made) == {"Answer: yes": 20, "no": 20, "me": 20, "no " * 40: 20, "no " * 41: 19}
    assert [pair.margin for pair in pairs] == [5, 4] * 20  # each by its row's own scores
    assert Counter(row.kind for row in left_out) == {"too_long": 39}
    start.stop.signal = signal.SIGTERM
    with pytest.raises(StopRequested):
        bodies._of_preferences(start, work)
    assert len(made) == 99


@pytest.mark.parametrize("kind", ["clipped", "direct_advantage"])
def test_what_takes_ratios_refuses_them_and_says_what_takes_them(lab: Lab, kind: str) -> None:
    start = lab.begun("stored", "stored.objective.kind=likelihood")
    start.config = load_config(Config, Path(lab.config), [f"stored.objective.kind={kind}"])
    with pytest.raises(ArtifactError, match=rf"{kind} takes ratios .*recorded solutions .*likelihood"):
        material_of(start)
    with pytest.raises(ArtifactError, match=r"pretrain_values learns .*recorded solutions .*likelihood"):
        lab.plan("actor", "actor.credit={mode: actor_critic}")


def test_demonstrations_longer_than_a_row_are_left_out_and_counted(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    start, long, short = lab.begun("sft"), ([1] * 2000, [1.0] * 2000), ([1], [1.0])
    assert that_fit(start, [long, short]) == [short]
    assert "1 demonstrations are left out" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="all 1 demonstrations are longer than 1088 tokens"):
        that_fit(start, [long])


def test_they_cost_no_sampling(lab: Lab) -> None:
    assert cost_of(lab.run_dir / "rollouts")[:2].tolist() == [0, 0]
    work = {entry.stage: entry for entry in work_of(load_config(Config, Path(lab.config)))}
    assert (work["rollouts"].rollouts, work["rollouts"].sampled_tokens) == (0, 0)


def test_to_play_nothing_is_refused_without_solutions(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"no rollouts\.solutions are brought in"):
        load_config(Config, Path(lab.config), ["rollouts={num_tasks: 0}"])


def test_a_killed_stage_goes_on_and_ends_the_same(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = beside(lab, "killed", "tasks", "sft") / "rollouts"
    monkeypatch.setenv("VDAPO_FAILPOINTS", "rollouts.item_done:60=raise")
    assert lab.start("rollouts", "--run", "killed") == 1
    assert not (folder / "manifest.json").exists()
    monkeypatch.delenv("VDAPO_FAILPOINTS")
    assert lab.start("rollouts", "--run", "killed") == 0
    whole, again = (
        json.loads((of / "manifest.json").read_text()) for of in (lab.run_dir / "rollouts", folder)
    )
    assert again["content_digest"] == whole["content_digest"]
    assert again["counts"] == whole["counts"]
    assert (folder / "left_out.jsonl").read_text() == (lab.run_dir / "rollouts/left_out.jsonl").read_text()


def test_recorded_solutions_make_pairs_of_one_prompt(lab: Lab) -> None:
    assert lab.start("preferences") == 0
    pairs = pairs_from(lab.artifact("preferences").table("pairs"))
    rollouts = {r.rollout_id: r for r in lab.rollouts("rollouts")}
    assert {pair.match for pair in pairs} == {"prompt"}
    for pair in pairs:
        assert (rollouts[pair.chosen.answer_id].reward, rollouts[pair.rejected.answer_id].reward) == (1, 0)


def test_recorded_preferences_become_the_same_table_and_dpo_learns_from_them(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = beside(lab, "preferred", "tasks", "sft"), lab.folder / "preferences.jsonl"
    asked = [f"Is {a} more than {b}?" for a in range(10) for b in range(8)]
    scores = {"score_chosen": 4.5, "score_rejected": 2}
    rows = [{"prompt": text, "chosen": "Answer: yes", "rejected": "Answer: no"} | scores for text in asked]
    trained = [task.prompt[-1]["content"] for task in lab.tasks().values() if task.split == "train"]
    known = next(row for row in rows if any(str(row["prompt"]) in text for text in trained))
    write(file, [*rows, known, known | {"chosen": "yes " * 40}])
    options = ("--run", "preferred", f"preferences.recorded={file}")
    assert lab.start("preferences", *options) == 0
    assert "rows left out: 1 duplicate, such as" in capsys.readouterr().err
    artifact = Artifact.open(folder, "preferences")
    counts, pairs = artifact.manifest["counts"], pairs_from(artifact.table("pairs"))
    assert set(artifact.manifest["inputs"]) == {"tasks", "sft"}
    assert counts["planned"] == 82
    assert counts["done"] == len(pairs) == 60
    assert counts["skipped"] == {"no_task": 20, "duplicate": 1, "too_long": 1}
    assert artifact.report["left_out"] == counts["skipped"]
    for pair in pairs:
        assert (pair.match, pair.similarity, pair.margin) == ("prompt", 1, 2.5)
        assert pair.chosen.prompt_token_ids == pair.rejected.prompt_token_ids
        assert "Answer: " in pair.chosen.text
        assert set(pair.chosen.loss_mask) == {1}
    assert 0 < sum(pair.held_out for pair in pairs) < len(pairs)
    small = ("dpo.learning_rate=1e-3", "dpo.batch_pairs=8")
    assert lab.start("dpo", *options, *small) == 0
    looks = Artifact.open(folder, "dpo").report["looks"]
    assert looks[-1]["all"]["accuracy"] > 0.5
    file.write_text(file.read_text() + json.dumps(known) + "\n")
    assert lab.start("preferences", *options) == 3
    assert f"files.{file}: " in capsys.readouterr().err
