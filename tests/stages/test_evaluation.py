"""What counts as a success of whom."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stages.wiring.player
from env.play.chains import Group
from pipeline.types import Event, Task
from stages.wiring import build
from stages.wiring.evaluated import compare, compare_events, successes


def groups_of(rollouts: list[Any], tasks: dict[str, Any]) -> dict[str, list[Group]]:
    found: dict[str, dict[str, Group]] = {"sampled": {}, "greedy": {}}
    for r in rollouts:
        kind = "sampled" if r.temperature else "greedy"
        found[kind][r.group_id] = Group(r.group_id, tasks[r.task_id], r.iteration, 2, 1)
    return {kind: list(groups.values()) for kind, groups in found.items()}


def test_policies_of_equal_weights_are_told_apart_by_their_groups(chain: Any) -> None:
    rollouts = [replace(r, policy_digest="same") for r in chain.rollouts("evaluation")]
    digests = chain.artifact("evaluation").report["policies"]
    own = [r for r in chain.rollouts("evaluation") if r.policy_digest == digests["start"]]
    groups = groups_of(own, chain.tasks())
    assert successes(rollouts, groups) == successes(own, groups)


def test_each_policy_s_engine_starts_once_and_none_where_all_is_played(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make_engine(config: Any, policy: Any) -> Any:
        made.append(policy.policy_digest)
        return build.make_engine(config, policy)

    monkeypatch.setattr(stages.wiring.player, "make_engine", make_engine)
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "actor")
    with monkeypatch.context() as patch:
        patch.setenv("VDAPO_FAILPOINTS", "evaluation.merge.before:1=raise")
        assert lab.start("evaluation") == 1
    digests = chain.artifact("evaluation").report["policies"]
    assert made == [digests["start"], digests["actor"]]
    assert lab.start("evaluation") == 0
    assert len(made) == 2
    assert lab.artifact("evaluation").report["policies"] == digests


def test_a_chain_without_an_answer_is_no_failure(chain: Any) -> None:
    sampled = [r for r in chain.rollouts("evaluation") if r.temperature]
    second = next(r for r in sampled if r.attempt == 1)
    first = next(r for r in sampled if r.group_id == second.group_id and r.attempt == 0)
    groups = groups_of([first], chain.tasks())
    task = first.task_id
    graded = successes([first, second], groups)
    assert graded["with_feedback"] == {task: [max(first.reward, second.reward)]}
    found = successes([first, replace(second, reward=None)], groups)
    assert found["first_try"] == {task: [first.reward]}
    assert found["with_feedback"] == {}
    assert found["greedy"] == {}
    cut = successes([replace(first, feedback_status="timeout")], groups)
    assert (cut["first_try"], cut["with_feedback"]) == ({task: [first.reward]}, {})
    refused = successes([replace(first, feedback_status="leak")], groups)
    assert refused["with_feedback"] == {task: [first.reward]}
    nothing = compare({}, {}, list(chain.tasks().values()), seed=0)
    assert nothing["tasks"] == 0
    assert nothing["gain"] == {"value": None, "low": None, "high": None}


def test_a_gain_is_paired_by_task_and_resamples_clusters() -> None:
    """40 clusters of ten tasks that do alike: as many numbers. What both policies share drops out."""
    rng = np.random.default_rng(0)
    tasks = [Task(f"t{i}", "phone", "val", 1, (), "rule", "", "calls", f"c{i // 10}", 0) for i in range(400)]
    shared, gains = np.repeat(rng.uniform(0, 0.5, 40), 10), np.repeat(rng.uniform(0, 0.4, 40), 10)
    start = {task.task_id: [x, x] for task, x in zip(tasks, shared, strict=True)}
    actor = {task.task_id: [x] for task, x in zip(tasks, shared + gains, strict=True)}
    found = compare(start, actor | {"nobody's": [1.0]}, tasks, seed=0)
    assert (found["tasks"], found["rollouts"]) == (400, 800)
    for name, of in (("start", shared), ("actor", shared + gains), ("gain", gains)):
        assert found[name]["value"] == pytest.approx(of.mean())
        width = 2 * 1.96 * of.std() / np.sqrt(40)
        assert found[name]["high"] - found[name]["low"] == pytest.approx(width, rel=0.15)


def test_a_gain_on_few_clusters_has_no_bounds() -> None:
    """Three that did alike would give an interval of no width."""
    for number, is_bounded in ((9, False), (10, True)):
        tasks = [
            Task(f"t{i}", "phone", "val", 1, (), "", "", "calls", f"c{i % number}", 0) for i in range(30)
        ]
        failed = {task.task_id: [0.0] for task in tasks}
        found = compare(failed, failed, tasks, seed=0)
        assert found["gain"]["value"] == 0
        assert {found[name]["low"] is not None for name in ("start", "actor", "gain")} == {is_bounded}


def test_events_of_first_tries_are_counted_by_rollout(chain: Any) -> None:
    report, tasks = chain.artifact("evaluation").report, chain.tasks()
    own = [r for r in chain.rollouts("evaluation") if r.temperature and r.attempt == 0]
    of_start = [r for r in own if r.policy_digest == report["policies"]["start"]]
    counted = report["events"]["form"]
    shares = [any(event.code == "form" for event in r.events) for r in of_start]
    assert 0 < counted["start"]["value"] == pytest.approx(sum(shares) / len(shares))
    # A rollout that nobody graded says nothing, and two events of a kind are one rollout's.
    made_up = replace(of_start[0], events=(Event("probe", 0), Event("probe", 1)))
    others = [replace(made_up, events=()), replace(made_up, reward=None)]
    found = compare_events([made_up], [made_up, *others], list(tasks.values()), seed=0)
    assert (found["probe"]["start"]["value"], found["probe"]["actor"]["value"]) == (1.0, 0.5)
    assert found["probe"]["tasks"] == 1
