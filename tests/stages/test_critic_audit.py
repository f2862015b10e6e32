import re
from dataclasses import replace

import pytest

from critics.audit.data import failed_tasks
from env.phone.world.levels import most_turns
from pipeline.errors import ArtifactError
from pipeline.types import Event
from stages.wiring.audit import in_fixed_order
from tests.rollouts import rollout

STAGES = ("tasks", "sft", "rollouts", "labels", "critic")
PLAYED = "stages.bodies.critic_report.in_fixed_order"


def without_steps(rollouts):
    return [replace(r, steps=()) for r in rollouts if r.kind == "whole"]


def ungraded_continuations(rollouts):
    return [r if r.kind == "whole" else replace(r, reward=None, env_status="timeout") for r in rollouts]


def ungraded(rollouts):
    return [replace(r, reward=None, env_status="timeout") for r in rollouts if r.kind == "whole"]


@pytest.mark.parametrize(
    ("damage", "code", "says", "following"),
    [
        (ungraded_continuations, 5, "8 bare rollouts 8 could be graded and 8 have a step", "SET=--repair"),
        (ungraded, 5, "8 bare rollouts 0 could be graded and 8 have a step; of 0 cont", "SET=--repair"),
        (without_steps, 4, "8 bare rollouts 8 could be graded and 0 have a step; of 0 cont", "make sft"),
    ],
)
def test_an_audit_without_a_usable_state_names_the_cause(
    chain, tmp_path, monkeypatch, capsys, damage, code, says, following
):
    monkeypatch.setattr(PLAYED, lambda *given: damage(in_fixed_order(*given)))
    # As with shards of one task of more than fifty, each of which is a tolerable loss.
    monkeypatch.setattr("stages.bodies.critic_report.refuse_outage", lambda *given: None)
    lab = chain.copy(tmp_path / "lab", *STAGES)
    options = ("tasks_per_split=4", "guided=false", "sibling_sets=0", "fit_tasks=0")
    assert lab.start("critic_report", *(f"critic_report.{option}" for option in options)) == code
    error = capsys.readouterr().err
    assert says in error
    assert "continuations 0 could be graded" in error
    assert following in error


def test_an_outage_ends_an_audit_and_the_same_command_goes_on(chain, tmp_path, monkeypatch, capsys):
    lab = chain.copy(tmp_path / "lab", *STAGES)
    options = ("tasks_per_split=4", "guided=false", "sibling_sets=0", "fit_tasks=0", "probe_rollouts=0")
    options = tuple(f"critic_report.{option}" for option in options)
    with monkeypatch.context() as patched:
        patched.setattr(PLAYED, lambda *given: ungraded(in_fixed_order(*given)))
        assert lab.start("critic_report", *options) == 5
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"\d+ tasks of shard 0 failed \(infra_error \d+\), 0 did not", said), said
    assert lab.start("critic_report", *options) == 0


def one_ungraded(rollouts, number):
    """The same with one continuation ungraded in each of so many tasks."""
    lost: dict[str, str] = {}
    failure = {"reward": None, "env_status": "timeout", "events": (Event("infra_error", 0, detail="late"),)}
    for r in rollouts:
        if r.kind == "continuation" and len(lost) < number:
            lost.setdefault(r.task_id, r.rollout_id)
    return [replace(r, **failure) if lost.get(r.task_id) == r.rollout_id else r for r in rollouts]


def played_task(*graded):
    """A first draw of one task, and continuations of two states of it."""
    own = {"task_id": "t", "parent_rollout_ids": ("a",), "kind": "continuation"}
    return [rollout(rollout_id="a", task_id="t")] + [
        rollout(rollout_id=f"c{i}", start_step_index=i // 2, reward=1.0 if ok else None, **own)
        for i, ok in enumerate(graded)
    ]


def test_a_task_fails_if_nothing_of_it_can_be_used_and_not_for_one_rollout_of_many():
    assert not failed_tasks(played_task(True, True, True, False))
    assert failed_tasks(played_task(True, False, True, False)) == {"t": "infra_error"}  # no state has two
    first, *others = played_task(True, True)
    assert failed_tasks([replace(first, reward=None)]) == {"t": "infra_error"}
    assert not failed_tasks([first, replace(first, rollout_id="b", draw=1, reward=None)])
    assert not failed_tasks([replace(first, steps=())])  # nothing was asked, so nothing failed
    assert failed_tasks(others[:1]) == {"t": "infra_error"}  # a fitted task has continuations alone
    asked = replace(first, feedback_status="timeout")
    assert failed_tasks([asked, *others]) == {"t": "feedback_timeout"}


@pytest.mark.parametrize(("number", "code"), [(1, 0), (4, 5)])
def test_few_ungraded_rollouts_cost_no_audit_and_many_do_though_no_task_fails(
    chain, tmp_path, monkeypatch, capsys, number, code
):
    monkeypatch.setattr(PLAYED, lambda *given: one_ungraded(in_fixed_order(*given), number))
    lab = chain.copy(tmp_path / "lab", *STAGES)
    options = ("tasks_per_split=4", "guided=false", "sibling_sets=0", "fit_tasks=0", "probe_rollouts=0")
    options = (*(f"critic_report.{option}" for option in options), "run.rollouts_per_shard=4096")
    assert lab.start("critic_report", *options) == code
    if code:
        error = " ".join(capsys.readouterr().err.split())
        assert re.search(r"4 of \d+ rollouts could not be graded; at most 2%", error), error
        assert "biased. Most often: late. Next: " in error
        assert "SET=--fresh" in error
    else:
        counts = lab.artifact("critic_report").manifest["counts"]
        assert (counts["done"], counts["failed"]) == (counts["planned"], {})


def test_a_shard_of_an_audit_has_as_many_rollouts_as_are_asked_for(chain, tmp_path):
    """At as many steps as the plan reckons with: a kill costs no more than `run.rollouts_per_shard`."""
    steps = most_turns([1])
    assert steps > 4
    each = 2 * (2 + 2 * steps)  # bare and guided, two rollouts and two continuations of each state of one
    two, three = (chain.plan("critic_report", f"run.rollouts_per_shard={3 * each - n}") for n in (1, 0))
    assert [len(plan.items[0]) for plan in (two, three)] == [2, 3]
    three.fix(tmp_path, {"stage": "critic_report"})
    three.fix(tmp_path, {"stage": "critic_report"})
    with pytest.raises(
        ArtifactError, match=r"former run\.rollouts_per_shard, or make critic_report SET=--fresh"
    ):
        two.fix(tmp_path, {"stage": "critic_report"})  # of an audit half done


@pytest.mark.slow
def test_a_reference_that_could_not_be_measured_is_left_out_of_a_whole_audit(chain, tmp_path, monkeypatch):
    def damaged(rollouts, task_ids):
        ordered = in_fixed_order(rollouts, task_ids)
        is_reference = all(rollout.kind == "continuation" for rollout in ordered)
        return ungraded_continuations(ordered) if is_reference else ordered

    monkeypatch.setattr(PLAYED, damaged)
    # 1 of 9 tasks; of 250 it is under 2 %
    monkeypatch.setattr("stages.bodies.critic_report.MAX_FAILED_SHARE", 0.2)
    monkeypatch.setattr("pipeline.artifacts.publish.MAX_FAILED_SHARE", 0.2)
    monkeypatch.setattr("env.play.shards.MAX_FAILED_SHARE", 0.2)
    lab = chain.copy(tmp_path / "lab", *STAGES)
    assert lab.start("critic_report", "critic_report.fit_tasks=1") == 0
    report, whole = lab.artifact("critic_report").report, chain.artifact("critic_report").report
    assert not any("fitted on" in row["name"] for row in report["references"])
    assert any("fitted on" in row["name"] for row in whole["references"])
    assert report["measures"] == whole["measures"]
