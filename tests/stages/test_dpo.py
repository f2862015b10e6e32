"""Preferences and dpo: what is paired, what is left out, a policy that learns, starts that fail."""

import math
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from pipeline.cli.show import run as show
from pipeline.cli.verify import run as verify
from pipeline.errors import ArtifactError, ConfigError
from pipeline.models.policy import load_policy, load_tokenizer
from pipeline.tables import pairs_from, reference_from
from pipeline.types import Pair
from stages.wiring.preference_data import check_both, held_out_of, pairs_of, sorted_rollouts
from stages.wiring.summary import summarise
from tests.pairs import answer
from tests.rollouts import rollout
from tests.stages.conftest import Lab

BEFORE = ("tasks", "sft", "rollouts")
SMALL = ("dpo.learning_rate=5e-4", "dpo.batch_pairs=4")


@pytest.fixture(scope="module")
def lab(chain: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Pairs of the chain's rollouts, and a policy that learned from them; read only."""
    made = chain.copy(tmp_path_factory.mktemp("dpo") / "lab", *BEFORE)
    assert made.start("preferences") == 0
    assert made.start("dpo", *SMALL) == 0
    return made


def pairs_in(lab: Lab) -> list[Pair]:
    return pairs_from(lab.artifact("preferences").table("pairs"))


def test_every_rollout_is_in_a_pair_or_is_left_out_for_a_reason(lab: Lab, chain: Lab) -> None:
    artifact, rollouts = lab.artifact("preferences"), {r.rollout_id: r for r in chain.rollouts("rollouts")}
    pairs, counts = pairs_in(lab), artifact.manifest["counts"]
    sides = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    assert len({side.answer_id for side in sides}) == counts["done"] > 0
    assert counts["done"] + sum(counts["skipped"].values()) == counts["planned"] == len(rollouts)
    assert artifact.report["left_out"] == counts["skipped"]
    tokens = [sum(pair.rejected.loss_mask) for pair in pairs]
    assert artifact.report["tokens_mean"]["rejected"] == pytest.approx(np.mean(tokens))
    for pair in pairs:
        assert rollouts[pair.chosen.answer_id].reward == pair.chosen.reward > 0.7
        assert rollouts[pair.rejected.answer_id].reward == pair.rejected.reward < 0.3
        assert pair.margin == pair.chosen.reward - pair.rejected.reward
        same = [getattr(pair.chosen, name) == getattr(pair.rejected, name) for name in ("task_id", "prompt")]
        assert {"prompt": same == [True, True], "task": same == [True, False], "similar": not same[0]}[
            pair.match
        ]
        assert (pair.similarity == 1) >= same[0]
    told = [artifact.report["pairs"][name] for name in ("train", "held_out")]
    assert told == [dict(Counter(p.match for p in pairs if p.held_out == held)) for held in (False, True)]


def test_what_follows_feedback_stands_after_the_bare_prompt_and_failures_of_it_nowhere(
    lab: Lab, chain: Lab
) -> None:
    tokenizer = load_tokenizer(chain.artifact("sft").path("policy"))
    guided = {r.rollout_id: r for r in chain.rollouts("rollouts") if r.guided}
    sides = [answer for pair in pairs_in(lab) for answer in (pair.chosen, pair.rejected)]
    assert {side.answer_id for side in sides if side.guided} == {s.answer_id for s in sides} & set(guided)
    stripped = [side for side in sides if side.guided]
    assert stripped
    for side in stripped:
        was = guided[side.answer_id]
        assert side.reward == 1
        assert side.response_token_ids == was.response_token_ids
        assert side.prompt == tokenizer.decode(list(side.prompt_token_ids), skip_special_tokens=False)
        assert "<previous_attempts>" not in side.prompt
        assert "<previous_attempts>" in tokenizer.decode(list(was.prompt_token_ids))


def test_no_cluster_is_learnt_from_and_looked_at(lab: Lab, chain: Lab) -> None:
    tasks, clusters = chain.tasks(), {True: set[str](), False: set[str]()}
    for pair in pairs_in(lab):
        clusters[pair.held_out] |= {tasks[side.task_id].cluster for side in (pair.chosen, pair.rejected)}
    assert clusters[True]
    assert clusters[False]
    assert not clusters[True] & clusters[False]


def test_rollouts_are_sorted_by_reward_and_a_side_without_any_is_refused() -> None:
    won, half, lost = (rollout(reward=reward, rollout_id=str(reward)) for reward in (0.8, 0.7, 0.2))
    guided = [replace(r, guided=True) for r in (won, lost)]
    found = sorted_rollouts([won, half, lost, *guided, rollout(reward=None)])
    assert (found.chosen, found.guided, found.rejected) == ([won], [guided[0]], [lost])
    assert found.left_out == {"reward_between": 1, "guided_failure": 1, "ungraded": 1}
    with pytest.raises(
        ArtifactError, match=r"none of 2 rollouts .* less than 0\.3.* rejected.*Next: "
    ) as raised:
        sorted_rollouts([won, half])
    assert raised.value.code == 4
    with pytest.raises(ArtifactError, match=r"more than 0\.7"):
        sorted_rollouts([half, lost])


def test_pairs_need_two_clusters_and_some_to_look_at(chain: Lab) -> None:
    with pytest.raises(ArtifactError, match=r"all answers are of one cluster \(a\).*2 are needed") as raised:
        held_out_of([["a"], ["a", "a"]], seed=0)
    assert raised.value.code == 4
    assert len(held_out_of([["a", "b"], ["c", "b"]], seed=0)) == 1  # across clusters
    assert held_out_of([["a", "b", "c"], ["c", "b"]], seed=0) < {"b", "c"}
    tasks = list(chain.tasks().values())
    one, other = tasks[0], next(task for task in tasks if task.cluster != tasks[0].cluster)
    sides = answer("w", task_id=one.task_id), answer("l", task_id=other.task_id)
    with pytest.raises(ArtifactError, match=r"0 pairs, of which 0 are of held-out clusters"):
        check_both(pairs_of(sides[:1], sides[1:], chain.tasks(), seed=0))


def test_the_reference_is_the_policy_before_the_first_update(lab: Lab) -> None:
    policy, pairs = load_policy(lab.artifact("sft").path("policy")), pairs_in(lab)
    reference = reference_from(lab.artifact("dpo").table("reference"))
    assert reference.keys() == {pair.pair_id for pair in pairs}
    for side, logprobs in zip((pairs[0].chosen, pairs[0].rejected), reference[pairs[0].pair_id], strict=True):
        ids = torch.tensor([side.prompt_token_ids + side.response_token_ids])
        with torch.inference_mode():
            all_logprobs = policy.model(ids).logits[0].log_softmax(-1)[:-1]
        expected = all_logprobs.gather(1, ids[0, 1:, None])[len(side.prompt_token_ids) - 1 :, 0].numpy()
        np.testing.assert_allclose(logprobs, expected * np.array(side.loss_mask), atol=1e-4)


def test_it_learns_to_tell_held_out_pairs_apart_and_keeps_the_best_weights(lab: Lab) -> None:
    artifact, report = lab.artifact("dpo"), lab.artifact("dpo").report
    artifact.verify()
    looks = report["looks"]
    assert looks[0]["all"] == pytest.approx(
        {"loss": math.log(2), "accuracy": 0.5, "log_ratio_gap": 0, "chosen_log_ratio": 0}
    )
    best = min(looks, key=lambda look: look["all"]["loss"])
    assert best["epoch"] > 0
    assert report["updates"] == best["update"]
    assert best["all"]["loss"] < math.log(2) - 0.01
    updates = [m for m in read_metrics(lab.run_dir / "dpo" / "metrics.jsonl") if "loss" in m]
    assert len(updates) == report["updates_taken"] > 0
    assert {"accuracy", "log_ratio_gap", "chosen_log_ratio", "grad_norm"} <= set(updates[-1])
    counts, pairs = artifact.manifest["counts"], pairs_in(lab)
    assert counts["planned"] == counts["done"] == len(pairs)
    for kind, wanted in (("same_prompt", True), ("other_prompts", False)):
        some = [pair for pair in pairs if pair.held_out and (pair.match == "prompt") == wanted]
        assert (looks[0][kind] is None) == (not some)
    html = unescape((lab.run_dir / "dpo" / "report.html").read_text("utf-8"))
    assert "On held-out pairs the loss was 0.6931 at the start" in html
    assert html.count("<svg") == 3
    assert not list((lab.run_dir / "dpo").glob("_looks*"))


def test_margins_ask_for_more_and_pairs_after_other_prompts_are_reported_apart(
    lab: Lab, tmp_path: Path
) -> None:
    """As if every second pair had been made across prompts."""
    other = lab.copy(tmp_path / "lab", *BEFORE, "preferences")
    original = Artifact.table

    def halved(artifact: Artifact, name: str) -> Any:
        table = original(artifact, name)
        if name != "pairs":
            return table
        column = table.schema.get_field_index("match")
        kinds = [("prompt", "similar")[i % 2] for i in range(table.num_rows)]
        return table.set_column(column, table.schema.field(column), [kinds])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Artifact, "table", halved)
        assert other.start("dpo", *SMALL, "dpo.mu=0.5", "dpo.max_epochs=1") == 0
    first, last = other.artifact("dpo").report["looks"]
    assert first["all"]["loss"] == pytest.approx(math.log(1 + math.exp(0.5)))  # all margins are 1
    without = lab.artifact("dpo").report["looks"][1]
    assert last["all"]["log_ratio_gap"] > without["all"]["log_ratio_gap"]
    held_out = [pair.held_out for pair in pairs_in(lab)]
    numbers = [sum(held_out[kind::2]) for kind in (0, 1)]
    for name in ("loss", "log_ratio_gap"):
        apart = [last[kind][name] for kind in ("same_prompt", "other_prompts")]
        assert apart[0] != apart[1]
        assert np.average(apart, weights=numbers) == pytest.approx(last["all"][name])
    html = (other.run_dir / "dpo" / "report.html").read_text("utf-8")
    assert "of these after prompts that differ" in html
    assert ">other prompts loss<" in html


def test_it_ends_at_the_first_look_without_a_lower_loss(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lab.copy(tmp_path / "lab", *BEFORE, "preferences")
    losses, held_out = iter([0.7, 0.6, 0.65]), sum(pair.held_out for pair in pairs_in(lab))

    def measures(pairs: list[Pair], *given: Any, **options: Any) -> dict[str, float]:
        loss = next(losses) if len(pairs) == held_out else 0.0  # of all, or of a kind
        return {"loss": loss, **dict.fromkeys(("accuracy", "log_ratio_gap", "chosen_log_ratio"), 0.0)}

    monkeypatch.setattr("stages.bodies.dpo.preference_measures", measures)
    assert other.start("dpo", *SMALL, "dpo.batch_pairs=16", "dpo.max_epochs=9") == 0
    report = other.artifact("dpo").report
    assert report["ended_by_itself"]
    assert [look["epoch"] for look in report["looks"]] == [0, 1, 2]
    assert report["updates"] == report["looks"][1]["update"]


def failed_on_the_way(lab: Lab, stage: str, points: tuple[str, ...], *options: str) -> None:
    """Starts a stage that fails at each point in turn, and then is let through."""
    for point in points:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.processes.failpoints._hits", Counter())
            patch.setenv("VDAPO_FAILPOINTS", f"{stage}.{point}=raise")
            assert lab.start(stage, *options) == 1, point
    assert lab.start(stage, *options) == 0


COMMIT = ("shard.before_write:1", "shard.after_write:1", "shard.after_rename:1", "shard.after_ledger:1")
SAVE = ("checkpoint.before:1", "checkpoint.mid:1", "checkpoint.after_files:1", "checkpoint.after_commit:1")
END = ("merge.before:1", "merge.after:1", "report_written:1", "manifest.temporary:1", "manifest.published:1")
TRAINED = ("update.before:1", "update.after:2", *SAVE, "update.before:2", "checkpoint.mid:1")
ALL = (
    ("start:1", "lock_taken:1", "plan_written:1", *COMMIT, *END),
    ("plan_written:1", *COMMIT, *TRAINED, *END),
)
FEW = (), ("update.after:2", "checkpoint.mid:1", "merge.before:1")


@pytest.mark.parametrize("points", [FEW, pytest.param(ALL, marks=pytest.mark.slow)], ids=["few", "all"])
def test_starts_that_fail_go_on_to_the_same_pairs_and_weights(lab: Lab, tmp_path: Path, points: Any) -> None:
    other = lab.copy(tmp_path / "lab", *BEFORE)
    failed_on_the_way(other, "preferences", points[0])
    failed_on_the_way(other, "dpo", points[1], *SMALL)
    for stage in ("preferences", "dpo"):
        ours, theirs = (of.artifact(stage) for of in (other, lab))
        assert ours.content_digest == theirs.content_digest
        assert ours.report == theirs.report
    assert not list((other.run_dir / "dpo").glob("_looks*"))


def test_the_policy_is_evaluated_beside_its_start(lab: Lab, tmp_path: Path) -> None:
    other = lab.copy(tmp_path / "lab", *BEFORE, "preferences", "dpo")
    assert other.start("evaluation", "evaluation.of=dpo", "run.held_out=[val]") == 0
    report = other.artifact("evaluation").report
    assert report["policies"] == {
        name: load_policy(other.artifact(stage).path("policy")).policy_digest
        for name, stage in (("start", "sft"), ("actor", "dpo"))
    }
    assert report["of"] == "dpo"
    assert (other.artifact("dpo").path("policy") / "generation_config.json").is_file()


def test_a_stored_phase_that_makes_no_policy_is_not_evaluated(chain: Lab) -> None:
    with pytest.raises(ConfigError, match=r"objective\.kind = none trains no policy.*Next"):
        chain.plan("evaluation", "evaluation.of=stored")


def test_a_summary_of_the_actor_is_not_made_of_another_policy(chain: Lab, tmp_path: Path) -> None:
    other = chain.copy(
        tmp_path / "lab", *BEFORE, *("labels", "critic", "critic_report", "actor", "evaluation")
    )
    report = other.artifact("evaluation").report | {"of": "dpo"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Artifact, "report", property(lambda artifact: report))
        with pytest.raises(ArtifactError, match=r"evaluation is of dpo; .*evaluation\.of=actor"):
            summarise(other.run_dir)


def test_after_a_stored_phase_it_starts_from_there(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, chances = lab.copy(tmp_path / "lab", *BEFORE, "preferences"), iter((0.3, 0.5))
    monkeypatch.setattr("stages.bodies.stored.probabilities", lambda trainer, rollouts: [next(chances)])
    phase = ("labels.num_continuations=0", "stored.objective.kind=likelihood", "stored.max_epochs=1")
    phase = (*phase, "stored.learning_rate=5e-4", "stored.batch_rows=4")
    assert other.start("stored", *phase) == 0
    assert other.start("dpo", *phase, "dpo.max_epochs=1") == 0
    assert "stored" in other.artifact("dpo").manifest["inputs"]
    mine, theirs = (reference_from(of.artifact("dpo").table("reference")) for of in (other, lab))
    assert mine.keys() == theirs.keys()
    assert not any(np.allclose(mine[name][0], theirs[name][0]) for name in mine)


def test_the_command_line_shows_and_verifies_pairs(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(Namespace(stage_dir=lab.run_dir / "preferences", table=None, rows=1)) == 0
    said = capsys.readouterr().out
    assert "match: prompt" in said
    assert "chosen_text: " in said
    assert verify(Namespace(run_dir=lab.run_dir)) == 0
    said = capsys.readouterr().out
    assert "preferences: complete and sound" in said
    assert "dpo: complete and sound" in said
