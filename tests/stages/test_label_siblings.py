"""Sibling sets among the labels: played on training tasks, counted, kept out of the labels, ranked."""

from __future__ import annotations

from typing import Any

import pytest

from critics.audit.siblings import distinct_steps
from critics.labels.splits import parts_of
from pipeline.errors import ArtifactError
from stages.wiring.continuations import graded, samples_of
from stages.wiring.critic_data import data_of, ranked_of
from stages.wiring.sibling_sets import counted_siblings

SETS = ("labels.sibling_sets=12", "labels.sibling_size=4", "labels.sibling_continuations=6")


@pytest.fixture(scope="module")
def lab(chain: Any, tmp_path_factory: Any) -> Any:
    made = chain.copy(tmp_path_factory.mktemp("siblings") / "lab", "tasks", "sft", "rollouts")
    assert made.start("labels", *SETS) == 0
    return made


def test_sets_are_of_training_tasks_and_every_planned_rollout_is_accounted_for(lab: Any) -> None:
    counts = lab.artifact("labels").manifest["counts"]
    assert counts["planned"] == 24 * 2 + 12 * 4 * (1 + 6)
    assert counts["planned"] == counts["done"] + sum(counts["skipped"].values())
    sampled = lab.rollouts("labels")
    assert len(sampled) == counts["done"]
    tasks = lab.tasks()
    assert {tasks[r.task_id].split for r in sampled} == {"train"}


def test_sets_that_no_fit_will_use_are_said_before_they_are_paid_for(
    chain: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    said = "labels.sibling_sets = 12: they are for critic.rank_weight, which is 0"
    assert made.start("labels", *SETS, "--dry-run") == 0
    assert said in capsys.readouterr().err
    assert made.start("labels", *SETS, "critic.rank_weight=0.2", "--dry-run") == 0
    assert said not in capsys.readouterr().err


def test_each_distinct_step_is_continued_and_its_samples_are_counted(lab: Any) -> None:
    parents = {r.rollout_id: r for r in lab.rollouts("rollouts")}
    sampled = lab.rollouts("labels")
    siblings: dict[str, list[Any]] = {}
    for r in sampled:
        if r.parent_rollout_ids[0] in parents and r.draw >= 2:
            siblings.setdefault(r.parent_rollout_ids[0], []).append(r)
    assert len(siblings) == 12
    assert {len(members) for members in siblings.values()} == {4}
    assert len({parents[name].task_id for name in siblings}) == 12
    counted = counted_siblings(sampled, parents, first_draw=2)
    kept = [distinct_steps(sorted(members, key=lambda r: r.draw)) for members in siblings.values()]
    assert len(counted) == sum(len(members) for members in kept if len(members) > 1) > 0
    assert {n for _, _, _, n in counted} == {6}
    for sibling, whole, k, n in counted:
        own = [r for r in sampled if r.parent_rollout_ids[0] == sibling.rollout_id]
        assert (k, n) == (sum(r.reward == 1 for r in own), len(own))
        after = whole.steps[sibling.start_step_index + 1].token_start
        prefix = whole.prompt_token_ids + whole.response_token_ids[:after]
        assert {r.prompt_token_ids for r in own} == {prefix}


def test_siblings_change_no_label(chain: Any, lab: Any) -> None:
    plain, with_sets = chain.artifact("labels"), lab.artifact("labels")
    assert with_sets.table("labels").to_pylist() == plain.table("labels").to_pylist()
    ids = {r.rollout_id for r in lab.rollouts("rollouts")}
    for states in samples_of(lab.rollouts("labels"), ids, 2).values():
        assert len(states) == 2


def test_the_critic_ranks_sets_of_the_fitting_companies_alone(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def spy(start: Any) -> Any:
        seen.append((start, data_of(start)))
        return seen[-1][1]

    monkeypatch.setattr("stages.critic.data_of", spy)
    assert lab.start("critic", *SETS, "critic.rank_weight=0.2") == 0
    start, data = seen[0]
    assert lab.artifact("critic").report["ranked_sets"] == len(data.ranked) > 0
    part_of = parts_of(lab.rollouts("rollouts"), lab.tasks(), start.config.critic, seed=start.seed)
    prompts = {r.prompt_token_ids: r.rollout_id for r in lab.rollouts("rollouts")}
    lengths = {len(prompt) for prompt in prompts}
    for ranked in data.ranked:
        for tokens in ranked.states:
            owners = {prompts[p] for n in lengths if (p := tuple(tokens[:n].tolist())) in prompts}
            assert {part_of[owner] for owner in owners} == {"fit"}
    others = [r for r in lab.rollouts("rollouts") if part_of.get(r.rollout_id) != "fit"]
    with pytest.raises(ArtifactError, match="no sibling set of the fitting companies"):
        ranked_of(lab.rollouts("labels"), others, start.config.critic, {"num_continuations": 2})


def test_later_states_are_those_of_continuations_and_not_of_siblings(lab: Any) -> None:
    sampled, rollouts = lab.rollouts("labels"), lab.rollouts("rollouts")
    assert any(r.draw >= 2 and len(r.steps) > 1 for r in sampled)
    samples = samples_of(sampled, {r.rollout_id for r in rollouts}, 2)
    found = graded(samples, rollouts[0].policy_digest)
    assert {r.draw for r in found} == {0, 1}
    assert graded(samples, "another policy") == []


def test_ranking_without_sets_is_refused(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.start("critic", "critic.rank_weight=0.2") == 2
    assert "set labels.sibling_sets above 0" in capsys.readouterr().err
    assert lab.start("critic", "labels.target=td", "critic.class_balance=label") == 2
    assert "critic.class_balance = label with labels.target = td" in capsys.readouterr().err
