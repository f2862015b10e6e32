"""The whole chain with the transformers engine, through the command line: is what it wrote true?"""

import json
import shutil
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from critics.labels.splits import split_clusters
from pipeline.artifacts import ledger
from pipeline.artifacts.metrics import read_metrics
from pipeline.errors import ArtifactError
from pipeline.ids import rollout_id
from pipeline.models.policy import load_policy
from pipeline.runs import MAIN_CHAIN
from pipeline.steps import check_tiling
from pipeline.tables import labels_from
from stages.wiring.pages import gate_words
from stages.wiring.summary import budget_of

SAMPLING = ("rollouts", "labels", "critic_report", "actor", "evaluation")


@pytest.mark.parametrize("stage", MAIN_CHAIN)
def test_every_digest_and_count_of_a_stage_is_right(chain, stage):
    artifact = chain.artifact(stage)
    artifact.verify()
    counts = artifact.manifest["counts"]
    kinds = (*counts["failed"].values(), *counts["skipped"].values())
    assert counts["planned"] == counts["done"] + sum(kinds) > 0
    if stage in ("rollouts", "labels", "evaluation"):
        assert artifact.table("rollouts").num_rows == counts["done"] + sum(counts["failed"].values())


@pytest.mark.parametrize("stage", SAMPLING)
def test_steps_tile_exactly_the_sampled_tokens(chain, stage):
    for rollout in chain.rollouts(stage):
        check_tiling(rollout)
        assert rollout.loss_mask[-1] == 1
        assert len(rollout.response_token_ids) <= rollout.max_response_tokens


@pytest.mark.parametrize("stage", ["rollouts", "actor", "evaluation"])
def test_guided_rollouts_carry_the_feedback_of_their_failed_parents(chain, stage):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chain.artifact("sft").path("policy"))
    rollouts = chain.rollouts(stage)
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    assert {(r.guided, r.reward) for r in rollouts} >= {(False, 0.0), (False, 1.0), (True, 1.0)}
    for rollout in rollouts:
        assert rollout.rollout_id == rollout_id(rollout.group_id, rollout.attempt, rollout.draw)
        prompt = tokenizer.decode(rollout.prompt_token_ids)
        assert rollout.guided == bool(rollout.parent_rollout_ids) == ("<previous_attempts>" in prompt)
        assert rollout.attempt > 0 or not rollout.guided
        lines = rollout.feedback_in_context.splitlines()
        assert len(lines) == len(rollout.parent_rollout_ids)
        for line, parent_id in zip(lines, rollout.parent_rollout_ids, strict=True):
            parent = by_id[parent_id]
            assert parent.reward == 0.0
            assert (parent.group_id, parent.task_id) == (rollout.group_id, rollout.task_id)
            assert parent.attempt < rollout.attempt
            assert line.endswith(f"=> {parent.feedback_text}")
            assert line in prompt


def assert_logprobs_of(folder, rollouts):
    """The kept ones must equal a plain pass of the model in a folder."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for rollout in rollouts:
        ids = torch.tensor([[*rollout.prompt_token_ids, *rollout.response_token_ids]])
        with torch.inference_mode():
            logits = model(ids).logits[0].double().log_softmax(-1)
        start = len(rollout.prompt_token_ids)
        own = logits[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        expected = own.numpy() * np.array(rollout.loss_mask)
        np.testing.assert_allclose(rollout.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize("stage", ["rollouts", "labels", "critic_report"])
def test_kept_logprobs_equal_a_plain_pass_of_the_exported_policy(chain, stage):
    assert_logprobs_of(chain.artifact("sft").path("policy"), chain.rollouts(stage)[::3])


def test_the_exported_actor_is_what_was_evaluated_and_training_began_from_sft(chain):
    digests = chain.artifact("evaluation").report["policies"]
    rollouts = chain.rollouts("evaluation")
    assert {r.policy_digest for r in rollouts} == set(digests.values())
    assert digests["start"] != digests["actor"]
    own = [r for r in rollouts if r.policy_digest == digests["actor"] and r.temperature > 0][::4]
    assert_logprobs_of(chain.artifact("actor").path("actor"), own)
    trained = chain.rollouts("actor")
    assert {r.policy_digest for r in trained if r.iteration == 0} == {digests["start"]}
    assert len({r.policy_digest for r in trained}) == 2
    assert digests["actor"] not in {r.policy_digest for r in trained}


def test_no_held_out_task_is_fitted_on_and_no_training_task_is_measured_on(chain):
    tasks = chain.tasks()
    splits = {stage: {tasks[r.task_id].split for r in chain.rollouts(stage)} for stage in SAMPLING}
    assert splits["rollouts"] == splits["labels"] == splits["actor"] == {"train"}
    audited = {tasks[r.task_id].split for r in chain.rollouts("critic_report") if r.kind == "whole"}
    assert audited == {"test_unseen_company"}
    assert splits["evaluation"] == {"val", "test_unseen_company"}
    labelled = {label.rollout_id for label in labels_from(chain.artifact("labels").table("labels"))}
    assert labelled <= {r.rollout_id for r in chain.rollouts("rollouts")}
    train, val, unseen = (
        {t.cluster for t in tasks.values() if t.split == split}
        for split in ("train", "val", "test_unseen_company")
    )
    assert val <= train
    assert not train & unseen


def test_continuations_stay_with_the_companies_that_fit_and_validate(chain):
    """Those that calibrate are not continued; the audit's reference is of rollouts that fitted the critic."""
    report, tasks = chain.artifact("critic_report").report, chain.tasks()
    parents = {r.rollout_id: r for r in chain.rollouts("rollouts")}
    clusters = {tasks[r.task_id].cluster for r in parents.values()}
    part_of = split_clusters(clusters, fit_share=0.5, validate_share=0.25, seed=0)
    assert {part_of[tasks[r.task_id].cluster] for r in chain.rollouts("labels")} == {"fit", "validate"}
    fitted = [r for r in chain.rollouts("critic_report") if tasks[r.task_id].split == "train"]
    assert {part_of[tasks[r.task_id].cluster] for r in fitted} == {"fit"}
    continued = {r.parent_rollout_ids[0] for r in fitted}
    assert len(continued) == 4
    assert "this critic on 4 tasks it was fitted on" in {row["name"] for row in report["references"]}
    assert len(fitted) == 2 * sum(len(parents[name].steps) for name in continued)
    assert not any(parents[name].guided for name in continued)
    assert "4 tasks it was fitted on" in (chain.run_dir / "critic_report" / "report.html").read_text()


def test_every_training_rollout_is_kept_with_the_critic_s_value_of_every_state(chain):
    kept, actor = {r.rollout_id: r for r in chain.rollouts("actor")}, chain.artifact("actor")
    looks = [m for m in read_metrics(chain.run_dir / "actor" / "metrics.jsonl") if "rollouts/count" in m]
    assert [m["iteration"] for m in looks] == [0, 1]
    for look in looks:
        tokens = [r.num_trainable_tokens for r in kept.values() if r.iteration == look["iteration"]]
        assert (len(tokens), sum(tokens)) == (look["rollouts/count"], look["rollouts/sampled_tokens"])
    assert actor.report["updates"] >= 2
    rows = actor.table("values").to_pylist()
    assert {row["critic"] for row in rows} == {chain.artifact("critic").report["critic_digest"]}
    assert all(0 < row["value"] < 1 for row in rows)
    steps = Counter(row["rollout_id"] for row in rows)
    assert steps == {name: len(kept[name].steps) for name in steps}


def test_continuations_begin_with_their_parents_tokens(chain):
    parents = {r.rollout_id: r for r in chain.rollouts("rollouts")}
    continued = [r for r in chain.rollouts("labels") if r.start_step_index > 0]
    assert continued
    for rollout in continued:
        parent = parents[rollout.parent_rollout_ids[0]]
        place = parent.steps[rollout.start_step_index].token_start
        assert rollout.prompt_token_ids == (*parent.prompt_token_ids, *parent.response_token_ids[:place])
        assert rollout.messages[: len(rollout.messages) - 1][0] == parent.messages[0]


def test_the_summary_names_what_it_must_and_only_adds_detail(chain):
    summary = json.loads((chain.run_dir / "summary.json").read_text())
    named = {"seed", "minutes", "first_try", "greedy", "with_feedback", "critic", "budget"}
    assert set(summary) - {"by_slice", "minutes_by_stage"} == named
    for name in ("first_try", "greedy", "with_feedback", "test_unseen_company"):
        measure = summary["by_slice"][name] if name.startswith("test") else summary[name]
        assert measure["gain"] == pytest.approx(measure["actor"] - measure["start"])
        assert measure["interval"] == [None, None]  # of so few companies
    critic, html = summary["critic"], (chain.run_dir / "summary.html").read_text()
    assert critic["gate"] in ("PASS", "FAIL")
    words = gate_words(critic)
    assert all(name in words for name in critic["not_measured"])
    assert words in html
    skills = {name for name in critic if name.startswith("skill_vs_")}
    assert skills == {"skill_vs_constant", "skill_vs_task_rate", "skill_vs_position"}
    sampled = [r for stage in ("rollouts", "labels", "critic_report", "actor") for r in chain.rollouts(stage)]
    budget = {name: summary["budget"][name] for name in ("rollouts", "tokens", "updates")}
    assert budget == sampled_in(sampled) | {"updates": chain.artifact("actor").report["updates"]}


def sampled_in(rollouts):
    return {"rollouts": len(rollouts), "tokens": sum(r.num_trainable_tokens for r in rollouts)}


def test_what_a_refresh_sampled_counts_in_the_budget(chain, tmp_path):
    name, stages = "refresh/00001-abc", ("rollouts", "labels", "critic_report")
    for stage in stages:
        shutil.copytree(chain.run_dir / stage, tmp_path / name / stage)
    whole = sampled_in([r for stage in stages for r in chain.rollouts(stage)])

    def budget(**runs):
        actor: Any = SimpleNamespace(report={"updates": 3} | runs, table=chain.artifact("actor").table)
        return budget_of(tmp_path, {"actor": actor})

    twice = budget(refreshes=[name, name])
    assert twice["by_stage"]["refresh"] == {unit: 2 * number for unit, number in whole.items()}
    assert twice["rollouts"] == 2 * whole["rollouts"] + len(chain.rollouts("actor"))
    # One that gave no critic cost its rollouts, and labels and audit as far as they came.
    for stage in ("critic_report", "labels"):
        assert budget(refused_refreshes=[name])["by_stage"]["refresh"] == whole
        # As one that sampled a shard, and then refused it for quality.
        folder = tmp_path / name / stage
        (folder / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(folder / "_ledger")
        facts = {"path": "rollouts.parquet", "rows": 0, "bytes": 0, "sha256": ""}
        ledger.append(folder, ledger.Entry(0, 0, {"rollouts": facts}, done=0))
    shutil.rmtree(tmp_path / name / "critic_report")  # refused before
    paid = sampled_in([r for stage in ("rollouts", "labels") for r in chain.rollouts(stage)])
    assert budget(refused_refreshes=[name])["by_stage"]["refresh"] == paid
    shutil.rmtree(tmp_path / name / "labels")
    for runs in ({"refreshes": [name]}, {"refused_refreshes": [name]}):
        with pytest.raises(ArtifactError, match="labels is missing"):
            budget(**runs)


@pytest.mark.parametrize("policy", ["start", "actor"])
def test_first_try_and_feedback_measures_follow_from_the_rollouts(chain, policy):
    report = chain.artifact("evaluation").report
    own = [r for r in chain.rollouts("evaluation") if r.policy_digest == report["policies"][policy]]
    sampled = [r for r in own if r.temperature > 0]
    chains: dict[str, float] = {}
    for r in sampled:
        chains[r.group_id] = max(chains.get(r.group_id, 0.0), r.reward)
    expected = {
        "first_try": np.mean([r.reward for r in sampled if r.attempt == 0]),
        "greedy": np.mean([r.reward for r in own if r.temperature == 0]),
        "with_feedback": np.mean(list(chains.values())),
    }
    measured = {name: measure["all"][policy]["value"] for name, measure in report["measures"].items()}
    assert {name: measured[name] for name in expected} == pytest.approx(expected)


@pytest.mark.slow
def test_a_base_is_taken_as_it_is_or_trained_further_or_adapted_and_merged(chain, tmp_path):
    base = chain.run_dir / "sft" / "policy"
    given = load_policy(base)

    def policy_of(name, *settings):
        lab = chain.copy(tmp_path / name, "tasks")
        assert lab.start("sft", f"sft.base={base}", *settings) == 0
        policy = load_policy(lab.run_dir / "sft" / "policy")
        assert policy.tokenizer_digest == given.tokenizer_digest
        return policy

    assert policy_of("adopted", "sft.num_updates=0").policy_digest == given.policy_digest
    assert policy_of("trained", "sft.num_updates=2").policy_digest != given.policy_digest
    adapted = policy_of("adapted", "sft.num_updates=3", "training.lora_rank=4")
    theirs = given.model.state_dict()
    changed = {n for n, t in adapted.model.state_dict().items() if not torch.equal(t, theirs[n])}
    assert changed == {name for name in theirs if "_proj" in name}
