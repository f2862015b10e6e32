"""The whole chain on sums modulo 100, with a policy so small that it only half learns them."""

import pytest

from tests.stages.conftest import MAIN_CHAIN, Lab, make_lab

pytestmark = pytest.mark.slow

SETTINGS = """
run: {name: r}
engine: {max_live: 64, replicas: 1}
training: {threads: 1}
tasks: {environment: math, families: {chain_add: 1.0}, level_shares: {1: 1.0}, num_train: 40,
        num_held_out: 12}
sampling: {max_response_tokens: 64}
prompt: {max_feedback_tokens: 80}
sft: {num_demonstrations: 1000, num_updates: 150, batch_rows: 16, learning_rate: 1.0e-2,
      shares: {careful: 0.6, careless: 0.4},
      model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, intermediate_size: 96}}
rollouts: {chain: {num_attempts: 2, draws: 2, feedback_free_share: 0.8, feedback_free_draws: 2}}
labels: {max_states: 40, num_continuations: 2}
critic: {privileged: words, fit_share: 0.5, validate_share: 0.25, head_updates: 2, head_learning_rate: 1.0e-3,
         learning_rate: 5.0e-4, max_epochs: 2, batch_states: 64, evaluations_per_epoch: 2}
critic_report: {tasks_per_split: 12, draws: 2, num_continuations: 2, guided: false, fit_tasks: 0}
actor: {credit: {on_weak_critic: allow}, num_iterations: 1, tasks_per_update: 4, max_refills: 0,
        chain: {num_attempts: 1, draws: 4}, evaluate_tasks: 4, learning_rate: 1.0e-4}
evaluation: {draws: 1}
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The chain of the tiny configuration, run once."""
    lab = make_lab(tmp_path_factory.mktemp("math"), SETTINGS)
    for stage in (*MAIN_CHAIN, "summary"):
        assert lab.start(stage) == 0, stage
    return lab


def test_the_chain_runs_and_its_steps_are_lines_with_verdicts(complete: Lab) -> None:
    rollouts = complete.rollouts("rollouts")
    assert {0.0, 1.0} == {rollout.reward for rollout in rollouts}
    for rollout in rollouts:
        wrong = [step for step in rollout.steps if step.verifier_status == "wrong"]
        assert all(step.verifier_message.removesuffix(" is false") in step.text for step in wrong)
    assert any(wrong for r in rollouts for wrong in r.steps if wrong.verifier_status == "wrong")
    assert any("is the first wrong one" in rollout.feedback_in_context for rollout in rollouts)


def test_a_critic_that_is_told_verdicts_values_states_between_lines(complete: Lab) -> None:
    for stage in ("critic_report", "actor"):
        steps = complete.artifact(stage).table("values").column("step_index").to_pylist()
        assert {0, 1, 2} <= set(steps), stage
