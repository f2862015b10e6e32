from dataclasses import replace

import pytest

from env.phone.world.levels import most_turns
from pipeline.errors import ArtifactError
from stages.wiring.audit import in_fixed_order

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
    lab = chain.copy(tmp_path / "lab", *STAGES)
    options = ("tasks_per_split=4", "guided=false", "sibling_sets=0", "fit_tasks=0")
    assert lab.start("critic_report", *(f"critic_report.{option}" for option in options)) == code
    error = capsys.readouterr().err
    assert says in error
    assert "continuations 0 could be graded" in error
    assert following in error


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
    monkeypatch.setattr("pipeline.artifacts.publish.MAX_FAILED_SHARE", 0.2)
    lab = chain.copy(tmp_path / "lab", *STAGES)
    assert lab.start("critic_report", "critic_report.fit_tasks=1") == 0
    report, whole = lab.artifact("critic_report").report, chain.artifact("critic_report").report
    assert not any("fitted on" in row["name"] for row in report["references"])
    assert any("fitted on" in row["name"] for row in whole["references"])
    assert report["measures"] == whole["measures"]
