"""Programs go down the chain as any other task: scripted programmers, up to the critic's report."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from env.code.offer import CODE
from pipeline.tables import labels_from
from tests.stages.conftest import Lab, make_lab

SETTINGS = """
run: {name: r}
engine: {kind: scripted}
training: {threads: 1}
tasks: {environment: code}
sampling: {max_response_tokens: 600}
prompt: {max_feedback_tokens: 400}
sft: {num_demonstrations: 64, num_updates: 2, batch_rows: 4,
      model: {hidden_size: 32, num_layers: 1, num_kv_heads: 1, intermediate_size: 64}}
rollouts: {chain: {num_attempts: 2, draws: 2, feedback_free_share: 0.5, feedback_free_draws: 2}}
labels: {target: soft, max_states: 24, num_continuations: 1}
critic: {fit_share: 0.5, validate_share: 0.25, head_updates: 2, head_learning_rate: 1.0e-3,
         learning_rate: 5.0e-4, max_epochs: 1, batch_states: 256, evaluations_per_epoch: 1}
critic_report: {tasks_per_split: 4, draws: 2, num_continuations: 2, guided: false, fit_tasks: 0}
actor: {chain: {num_attempts: 1}}  # what is judged: no state after feedback
"""


def test_a_critic_is_not_told_verdicts_that_look_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not CODE.step_verdicts
    assert make_lab(tmp_path, SETTINGS).start("critic", "critic.privileged=features") == 2
    assert "step_verdicts" in capsys.readouterr().err


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    if sys.platform != "linux":
        pytest.skip("confinement needs Linux")
    lab = make_lab(tmp_path_factory.mktemp("code"), SETTINGS)
    for stage in ("tasks", "sft", "rollouts", "labels", "critic", "critic_report"):
        assert lab.start(stage) == 0, stage
    return lab


@pytest.mark.slow
def test_rollouts_have_verdicts_on_lines_and_the_second_attempt_hears_of_the_first(lab: Lab) -> None:
    rollouts = lab.rollouts("rollouts")
    assert {rollout.env_status for rollout in rollouts} == {"ok"}
    assert {rollout.reward for rollout in rollouts} == {0.0, 1.0}
    for rollout in rollouts:
        statuses = {step.verifier_status for step in rollout.steps}
        assert ("ok" in statuses) == (rollout.reward == 1.0)
        assert not (rollout.reward == 1.0 and "wrong" in statuses)
        assert len(rollout.steps) > 2
        assert bool(rollout.feedback_text) == (rollout.reward == 0.0)
    codes = Counter(
        step.verifier_code for r in rollouts for step in r.steps if step.verifier_status == "wrong"
    )
    assert {"syntax", "exception"} <= set(codes)
    guided = [rollout for rollout in rollouts if rollout.guided]
    assert all("Not solved." in rollout.feedback_in_context for rollout in guided)
    success = [sum(r.reward or 0 for r in some) / len(some) for some in (rollouts, guided)]
    assert success[1] > success[0]


@pytest.mark.slow
def test_states_inside_a_solution_are_continued_and_labelled(lab: Lab) -> None:
    labels = labels_from(lab.artifact("labels").table("labels"))
    assert {label.context for label in labels} <= {"bare", "guided"}
    assert max(label.step_index for label in labels) > 1
    continued = [rollout for rollout in lab.rollouts("labels") if rollout.start_step_index > 0]
    assert continued
    assert {rollout.reward for rollout in continued} == {0.0, 1.0}


@pytest.mark.slow
def test_the_report_measures_who_finds_the_first_error(lab: Lab) -> None:
    measures = lab.artifact("critic_report").report["measures"]["bare"]
    for name in ("exact", "within_one", "none", "f1"):
        assert 0 <= measures[name]["value"] <= 1


@pytest.mark.slow
def test_the_share_of_tests_is_a_reward_between_0_and_1(lab: Lab, tmp_path: Path) -> None:
    graded = make_lab(tmp_path / "share", SETTINGS)
    few = ["tasks.reward=share", "rollouts.num_tasks=8"]
    for stage in ("tasks", "sft", "rollouts"):
        assert graded.start(stage, *few) == 0, stage
    rewards = {rollout.reward for rollout in graded.rollouts("rollouts")}
    assert rewards - {0.0, 1.0}
    assert all(0 <= reward <= 1 for reward in rewards if reward is not None)
