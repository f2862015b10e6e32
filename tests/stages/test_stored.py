"""The stored phase: what it learns from, what it leaves out, when it ends, who starts from it."""

import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stages.bodies.stored
from env.play.stripping import is_success
from pipeline.artifacts.metrics import read_metrics
from pipeline.errors import ArtifactError
from pipeline.models.policy import load_policy, load_tokenizer
from pipeline.runs import MAIN_CHAIN
from pipeline.training.stored.stopping import PATIENCE
from pipeline.training.torch import TorchTrainer
from stages.wiring.plan_work import work_of
from stages.wiring.stored_data import Material, examples_of, material_of, stripped_guided
from stages.wiring.summary import summarise
from tests.stages.conftest import Lab

BEFORE = MAIN_CHAIN[: MAIN_CHAIN.index("stored")]
KINDS = ("likelihood", "advantage_weighted", "clipped", "direct_advantage")
SMALL = ("stored.learning_rate=5e-4", "stored.batch_rows=4", "stored.max_epochs=3")


def options(kind: str) -> tuple[str, ...]:
    """Returns settings of a phase; the chain's critic is too small to pass its gate."""
    weak = () if kind == "likelihood" else ("stored.objective.on_weak_critic=allow",)
    return (f"stored.objective.kind={kind}", *weak, *SMALL)


@pytest.fixture(scope="module")
def labs(chain: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lab]:
    """A finished stored phase of each kind; the tiny critic tells no siblings apart."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.training.stored.siblings.MIN_GAP", 0.0)
        for kind in KINDS:
            made[kind] = chain.copy(tmp_path_factory.mktemp(kind) / "lab", *BEFORE)
            assert made[kind].start("stored", *options(kind)) == 0
    return made


def digest_of(lab: Lab, stage: str = "stored") -> str:
    return load_policy(lab.artifact(stage).path("policy")).policy_digest


def test_by_default_there_is_nothing_to_do_and_the_actor_starts_from_sft(chain: Lab) -> None:
    artifact = chain.artifact("stored")
    counts = artifact.manifest["counts"]
    assert (counts["planned"], counts["done"], counts["skipped"]) == (1, 0, {"objective_none": 1})
    assert artifact.report == {"objective": "none"}
    assert "stored" not in chain.artifact("actor").manifest["inputs"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_rollout_is_accounted_for_and_the_best_weights_are_kept(
    kind: str, chain: Lab, labs: dict[str, Lab]
) -> None:
    lab = labs[kind]
    artifact, report = lab.artifact("stored"), lab.artifact("stored").report
    artifact.verify()
    rows, looks = report["rows"], report["looks"]
    read = len(chain.rollouts("rollouts")) + len(chain.rollouts("labels"))
    told = sum(rows[name] for name in ("bare", "guided_stripped", "held_out"))
    assert told + sum(rows["left_out"].values()) == read
    assert (rows["guided_stripped"] > 0) == (kind in ("likelihood", "advantage_weighted"))
    measure = "gain" if kind in ("clipped", "direct_advantage") else "probability"
    assert report["measure"] == measure
    found = [look[measure] for look in looks]
    best = max(looks, key=lambda look: look[measure])
    assert report["updates"] == best["update"]
    assert (digest_of(lab) == digest_of(chain, "sft")) == (best["epoch"] == 0)
    updates = [m for m in read_metrics(lab.run_dir / "stored" / "metrics.jsonl") if "loss" in m]
    assert len(updates) == report["updates_taken"] == looks[-1]["update"] > 0
    assert len(found) <= 4
    assert 0 < report["effective_tokens"] <= report["tokens"] + 1e-6
    by_token = kind in (
        "likelihood",
        "clipped",
    )  # else steps weigh unequally, or all alike whatever their length
    assert (report["effective_tokens"] > 0.999 * report["tokens"]) == by_token
    assert report["tokens_trained"] > 0
    assert not list((lab.run_dir / "stored").glob("_looks*"))
    served = json.loads((artifact.path("policy") / "generation_config.json").read_text("utf-8"))
    assert served["top_k"] == 0  # a round serves it
    html = unescape((lab.run_dir / "stored" / "report.html").read_text("utf-8"))
    assert ("WEAK CRITIC" in html) == (kind != "likelihood")
    assert f"{found[0]:.4f} at the start" in html
    assert f"of {rows['held_out']:,} " in html


def test_likelihood_makes_held_out_successes_more_probable(labs: dict[str, Lab]) -> None:
    looks = labs["likelihood"].artifact("stored").report["looks"]
    assert looks[1]["probability"] > looks[0]["probability"]


def examples(lab: Lab, kind: str, values_of: Any = None, **changes: Any) -> tuple[Material, Any]:
    start = lab.begun("stored", *options(kind))
    material = replace(material_of(start), **changes)
    tokenizer = load_tokenizer(lab.artifact("sft").path("policy"))
    return material, examples_of(start, material, values_of, tokenizer)


def test_what_is_looked_at_is_of_other_clusters_and_only_successes_are_imitated(chain: Lab) -> None:
    material, found = examples(chain, "likelihood")
    train, held = ({material.tasks[r.task_id].cluster for r in of} for of in (found.train, found.held_out))
    assert train
    assert held
    assert not train & held
    assert all(is_success(r) and not r.guided for r in (*found.train, *found.held_out))
    kinds = {r.kind for r in found.train}
    assert kinds == {"whole", "continuation"}


def test_an_objective_of_ratios_is_looked_at_on_failures_too(chain: Lab) -> None:
    material, found = examples(
        chain, "clipped", lambda rollouts: [np.full(len(r.steps), 0.5) for r in rollouts]
    )
    train, held = ({material.tasks[r.task_id].cluster for r in of} for of in (found.train, found.held_out))
    assert not train & held
    assert {is_success(r) for r in found.held_out} == {True, False}
    for r, advantages in zip(found.held_out, found.held_out_advantages, strict=True):
        assert advantages[-1] == pytest.approx((r.reward or 0) - 0.5)


def test_the_bare_prompt_is_the_one_that_is_sampled_from(chain: Lab) -> None:
    """Bare rollouts, handed over as if they had been guided, get the prompt that they have."""
    start = chain.begun("stored", *options("likelihood"))
    material = material_of(start)
    tokenizer = load_tokenizer(chain.artifact("sft").path("policy"))
    bare = [r for r in material.bare if is_success(r)]
    assert {r.kind for r in bare} == {"whole", "continuation"}
    kept, told = stripped_guided(start.config, replace(material, guided=bare), tokenizer)
    assert not told
    assert [r.token_ids for r in kept] == [r.token_ids for r in bare]
    kept, _ = stripped_guided(start.config, material, tokenizer)
    guided = {r.rollout_id: r for r in material.guided}
    for r in kept:
        was = guided[r.rollout_id]
        assert "<previous_attempts>" in tokenizer.decode(was.prompt_token_ids)
        assert "<previous_attempts>" not in tokenizer.decode(r.prompt_token_ids)
        assert (r.response_token_ids, r.loss_mask) == (was.response_token_ids, was.loss_mask)


def test_a_guided_success_that_says_what_only_feedback_told_it_is_counted_and_not_imitated(
    chain: Lab,
) -> None:
    guided = material_of(chain.begun("stored", *options("likelihood"))).guided
    first = guided[0]
    messages = list(first.messages)
    place = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    messages[place] = {**messages[place], "content": "call 555-98989 R1"}
    feedback = f"{first.feedback_in_context}\ncall 555-98989 R1 => not served"
    leaks = replace(first, messages=tuple(messages), feedback_in_context=feedback)
    _, before = examples(chain, "likelihood")
    _, found = examples(chain, "likelihood", guided=[leaks, *guided[1:]])
    assert found.counts["told_words"]["98989"] == 1
    ids = {r.rollout_id for r in (*found.train, *found.held_out)}
    assert leaks.rollout_id not in ids
    left_out = [counts.counts["left_out"].get("told_by_feedback", 0) for counts in (before, found)]
    assert left_out[1] - left_out[0] in (0, 1)  # 0: it was left out before as well
    assert left_out[1] >= 1


def scripted_looks(monkeypatch: pytest.MonkeyPatch, *numbers: float) -> None:
    """Makes held-out successes as probable as told, look by look."""
    left = iter(numbers)
    monkeypatch.setattr(stages.bodies.stored, "probabilities", lambda trainer, rollouts: [next(left)])


def test_it_ends_by_itself_some_looks_after_the_best_one_whose_weights_it_keeps(
    chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, longer = chain.copy(tmp_path / "lab", *BEFORE), "stored.max_epochs=9"
    scripted_looks(monkeypatch, 0.3, 0.5, *[0.4] * PATIENCE)
    assert lab.start("stored", *options("likelihood"), longer) == 0
    report = lab.artifact("stored").report
    assert report["ended_by_itself"]
    assert [look["epoch"] for look in report["looks"]] == list(range(2 + PATIENCE))
    per_epoch = report["looks"][1]["update"]
    assert (report["updates"], report["updates_taken"]) == (per_epoch, (1 + PATIENCE) * per_epoch)
    one = chain.copy(tmp_path / "one", *BEFORE)
    scripted_looks(monkeypatch, 0.3, 0.5)
    assert one.start("stored", *options("likelihood"), "stored.max_epochs=1") == 0
    assert not one.artifact("stored").report["ended_by_itself"]
    assert digest_of(one) == digest_of(lab)


def test_where_nothing_helps_the_policy_stays_as_it_was(
    chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = chain.copy(tmp_path / "lab", *BEFORE)
    scripted_looks(monkeypatch, 0.5, *[0.4] * 9)
    assert lab.start("stored", *options("likelihood")) == 0
    assert digest_of(lab) == digest_of(chain, "sft")
    assert lab.artifact("stored").report["updates"] == 0


@pytest.mark.parametrize(
    "point",
    ["update.after:3", "checkpoint.mid:2", "checkpoint.after_commit:2", "merge.before:1", "report_written:1"],
)
def test_a_failed_start_goes_on_to_the_same_weights(
    point: str, labs: dict[str, Lab], chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = chain.copy(tmp_path / "lab", *BEFORE)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.processes.failpoints._hits", Counter())
        patch.setenv("VDAPO_FAILPOINTS", f"stored.{point}=raise")
        assert lab.start("stored", *options("likelihood")) == 1
    assert lab.start("stored", *options("likelihood")) == 0
    ours, theirs = (of.artifact("stored") for of in (lab, labs["likelihood"]))
    assert ours.content_digest == theirs.content_digest
    assert ours.report == theirs.report
    assert not list((lab.run_dir / "stored").glob("_looks*"))


def test_before_the_first_update_no_weights_are_written(
    chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = chain.copy(tmp_path / "lab", *BEFORE)
    monkeypatch.setattr("pipeline.processes.failpoints._hits", Counter())
    monkeypatch.setenv("VDAPO_FAILPOINTS", "stored.update.before:1=raise")
    assert lab.start("stored", *options("likelihood")) == 1
    assert lab.checkpoints("stored") == []
    assert not list((lab.run_dir / "stored").rglob("*.safetensors"))


def test_a_stop_between_looks_goes_on_where_it_was(
    labs: dict[str, Lab], chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, update = chain.copy(tmp_path / "lab", *BEFORE), TorchTrainer.update
    taken = []

    def asked_to_stop(trainer: Any, rows: Any, loss: Any) -> Any:
        taken.append(trainer.num_updates)
        os.kill(os.getpid(), signal.SIGTERM)
        return update(trainer, rows, loss)

    with monkeypatch.context() as patch:
        patch.setattr(TorchTrainer, "update", asked_to_stop)
        assert lab.start("stored", *options("likelihood")) == 75
        assert lab.start("stored", *options("likelihood")) == 75
    assert taken == [0, 1]
    assert lab.start("stored", *options("likelihood")) == 0
    assert lab.artifact("stored").report == labs["likelihood"].artifact("stored").report
    assert digest_of(lab) == digest_of(labs["likelihood"])


def test_the_actor_starts_from_it_under_the_critic_of_the_policy_before(
    labs: dict[str, Lab], tmp_path: Path
) -> None:
    lab = labs["likelihood"].copy(tmp_path / "lab", *BEFORE, "stored")
    start, kind = digest_of(lab), options("likelihood")
    assert start != digest_of(lab, "sft")
    assert lab.start("actor", *kind, "actor.num_iterations=1") == 0
    actor = lab.artifact("actor")
    assert set(actor.manifest["inputs"]) == {"tasks", "sft", "critic", "critic_report", "stored"}
    assert {r.policy_digest for r in lab.rollouts("actor")} == {start}
    updates = lab.artifact("stored").report["updates"]
    card = actor.path("actor/README.md").read_text("utf-8")
    assert f"then {updates} updates on stored rollouts (likelihood)." in card


def test_a_summary_asks_for_the_stages_that_the_stored_phase_read(chain: Lab, tmp_path: Path) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "evaluation")
    assert lab.start("actor", "actor.credit={mode: grpo}", "actor.num_iterations=1") == 0
    assert set(summarise(lab.run_dir, with_critic=False)["budget"]["by_stage"]) == {"actor"}
    read = ("tasks", "sft", "rollouts")
    with pytest.raises(ArtifactError, match="Run: make rollouts"):
        summarise(lab.run_dir, with_critic=False, stored_from=read)
    for stage in ("rollouts", "stored"):
        shutil.copytree(chain.run_dir / stage, lab.run_dir / stage)
    summary = summarise(lab.run_dir, with_critic=False, stored_from=read)
    assert set(summary["budget"]["by_stage"]) == {"rollouts", "actor"}
    assert "stored" in summary["minutes_by_stage"]


def test_what_cannot_be_learnt_from_is_refused_before_anything_is_made(
    chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = json.loads(chain.artifact("critic_report").path("gate.json").read_text())
    with pytest.raises(ArtifactError, match=r"gate failed: .*stored\.objective\.on_weak_critic") as raised:
        chain.plan("stored", "stored.objective.kind=clipped")
    assert raised.value.code == 4
    assert gate["reasons"][0] in str(raised.value)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "critic", "critic_report")
    alone = ("labels.target=outcome_dense", "labels.num_continuations=0")
    assert lab.start("labels", *alone) == 0
    with pytest.raises(ArtifactError, match=r"no bare state .*labels\.num_continuations") as raised:
        lab.plan("stored", *alone, *options("direct_advantage"))
    assert raised.value.code == 4
    monkeypatch.setattr("stages.wiring.stored_data.is_success", lambda rollout: False)
    with pytest.raises(ArtifactError, match="successes to imitate are of 0 clusters"):
        chain.plan("stored", *options("likelihood"))


def test_labels_and_critic_are_read_only_where_they_are_asked(chain: Lab) -> None:
    def read(*overrides: str) -> set[str]:
        return set(chain.begun("stored", *overrides).inputs)

    bare = {"tasks", "sft", "rollouts"}
    assert read("stored.objective.kind=likelihood", "labels.num_continuations=0") == bare
    assert read("stored.objective.kind=likelihood") == {*bare, "labels"}
    assert read("stored.objective.kind=clipped") == {*bare, "labels", "critic", "critic_report"}


def test_the_plan_of_a_configuration_counts_the_phase_where_there_is_one(chain: Lab) -> None:
    def stages_of(*overrides: str) -> dict[str, Any]:
        return {work.stage: work for work in work_of(chain.begun("tasks", *overrides).config, policy=10)}

    assert "stored" not in stages_of()
    planned = stages_of("stored.objective.kind=likelihood", "stored.max_epochs=2")
    sampled = planned["rollouts"].sampled_tokens + planned["labels"].sampled_tokens
    assert planned["stored"].trained_tokens == 2 * sampled
    assert planned["stored"].sampled_tokens == 0
