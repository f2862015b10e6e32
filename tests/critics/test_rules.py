from dataclasses import replace

import numpy as np
import pytest

from critics.fit.held_out import held_out
from critics.fit.rows import critic_rows
from critics.fit.td_targets import Bootstrap, td_targets
from critics.labels.checks import check_labels
from critics.labels.named_targets import RULES, retarget
from critics.logit import sigmoid
from tests.critics.conftest import NUM_CELLS, POLICY, build, make_rollout, make_task, walks
from tests.critics.test_fitting import START, fitted, trainer_of


def targets_of(labels, rollout_id="a"):
    return {x.step_index: x.target for x in labels if x.rollout_id == rollout_id}


def test_each_rule_gives_its_targets_where_it_may() -> None:
    won = make_rollout("a", num_steps=7)
    lost = make_rollout("b", task="t1", num_steps=7, reward=0.0, wrong={2: "missing"})
    blank = make_rollout("c", task="t2", num_steps=3, reward=0.0)
    rollouts = [won, lost, blank]
    found = {rule: retarget(build(rollouts, {})[0], rollouts, rule, policy=POLICY) for rule in RULES}
    for rule in ("monte_carlo", "td", "td_lambda"):
        assert targets_of(found[rule]) == dict.fromkeys((0, 1, 2, 4), 1.0)
        assert targets_of(found[rule], "b") == dict.fromkeys((0, 1, 2, 4), 0.0)
    assert targets_of(found["outcome_dense"]) == dict.fromkeys(range(7), 1.0)
    decayed = targets_of(found["rule_decay"], "b")
    assert [decayed[i] for i in range(7)] == pytest.approx([0.5, 0.45, 0.405, 0, 0, 0, 0])
    assert set(targets_of(found["rule_decay"], "c").values()) == {0.0}
    half = [make_rollout("a", reward=0.5)]
    assert set(targets_of(retarget([], half, "rule_decay", policy=POLICY)).values()) == {0.5}
    for rule, labels in found.items():
        assert {x.label_source for x in labels} == {rule}
        assert {x.weight for x in labels} == {1.0}


def test_every_rule_passes_the_loader_keeps_the_counts_and_uses_fit_rollouts_alone() -> None:
    rollouts = [make_rollout(f"r{i}", task=f"t{i}", reward=float(i % 2)) for i in range(6)]
    tasks, own = [make_task(f"t{i}") for i in range(6)], build(rollouts, {})[0]
    for rule in RULES:
        labels = retarget(own, rollouts, rule, policy=POLICY)
        assert check_labels(labels, rollouts, tasks, label_policy_digest=POLICY)["num_samples"] == len(own)
    other = [make_rollout("a", policy_digest="other"), make_rollout("b", reward=None)]
    assert retarget(build(other, {})[0], other, "outcome_dense", policy=POLICY) == []
    with pytest.raises(ValueError, match="known: monte_carlo"):
        retarget([], [], "nosuch", policy=POLICY)


def test_lam_one_is_the_reward_and_lam_zero_the_next_value() -> None:
    values = np.array([0.2, 0.5, 0.9])
    assert td_targets(values, 1.0, 1.0).tolist() == [1.0, 1.0, 1.0]
    assert td_targets(values, 0.0, 0.0).tolist() == [0.5, 0.9, 0.0]
    # y(lam) - V is the advantage with trace decay lam.
    from pipeline.credit.step_advantages import gae

    advantage = gae(1.0, values, gamma=1.0, lam=0.7)
    assert td_targets(values, 1.0, 0.7) - values == pytest.approx(advantage)


@pytest.mark.parametrize("lam", [0.0, 0.9])
def test_bootstrapped_targets_find_the_values_of_a_chain(tiny_trunk, lam) -> None:
    rollouts, validation = walks(300, 0)[0], held_out(*walks(100, 1))
    labels = retarget(build(rollouts, {})[0], rollouts, "td_lambda", policy=POLICY)
    trainer, settings = trainer_of(tiny_trunk), replace(START, max_epochs=8, patience=8, error_weight=0.0)
    world = critic_rows(rollouts, labels), validation
    result = fitted(trainer, world, settings, bootstrap=Bootstrap.of(rollouts, lam))
    p = sigmoid(validation.logits(trainer) + result.base_logit)
    at = [validation.rows[r].token_ids[i] for r, i in zip(validation.row, validation.position, strict=True)]
    exact = (np.array(at) - 20) / NUM_CELLS
    assert np.corrcoef(p, exact)[0, 1] > 0.9
    assert np.sqrt(np.mean((p - exact) ** 2)) < 0.12
