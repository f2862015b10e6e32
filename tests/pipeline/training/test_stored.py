"""Objectives of stored rollouts: each recovers a policy that is known; siblings; when training ends."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.errors import ArtifactError
from pipeline.training.packing import micro_batches
from pipeline.training.stored.advantage_weighted import step_weights
from pipeline.training.stored.objective import effective_size, held_out_gain, make_objective
from pipeline.training.stored.siblings import first_step, sibling_advantages, sibling_sets
from pipeline.training.stored.stopping import (
    PATIENCE,
    best_look,
    held_out_clusters,
    is_over,
    latest_as_good,
    probabilities,
)
from pipeline.training.stored.v_dapo import with_own_logprobs
from pipeline.training.torch import TorchTrainer
from pipeline.types import Rollout, Step
from tests.pipeline.training.helpers import policy
from tests.rollouts import rollout

PI_0 = np.array([0.5, 0.3, 0.2])
FIRST = 10  # id of the first action


def said(action: int, **changes: Any) -> Rollout:
    """Returns a rollout of one step, which is one of three tokens, sampled by PI_0."""
    logprobs = (float(np.log(PI_0[action])),)
    return replace(
        rollout((1,), ((0, 1),)), response_token_ids=(FIRST + action,), logprobs=logprobs, **changes
    )


def fitted(
    kind: str, actions: Sequence[int], advantages: Sequence[float], rate: float = 3.0, **options: Any
) -> np.ndarray:
    """Returns the probabilities [3] at which gradient descent from PI_0 ends, in micro-batches."""
    objective = make_objective(kind, **options)
    rows = objective.rows([said(a) for a in actions], [np.array([A]) for A in advantages])
    logits = torch.tensor(np.log(PI_0), requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=rate)
    for _ in range(500):
        optimizer.zero_grad()
        for batch in micro_batches(rows, 30):
            at = (batch.token_ids - FIRST).clamp(0)
            outputs = {"logprobs": logits.log_softmax(0)[at] * (batch.columns["weight"] != 0)}
            objective.loss(outputs, batch)[0].backward()
        optimizer.step()
    return logits.detach().softmax(0).numpy()


def test_likelihood_of_successes_is_the_policy_given_success() -> None:
    """With chances of success .2, .8, .4 of the actions, pi(a | success) ~ pi_0(a) p(a)."""
    wins = (0.2, 0.8, 0.4)
    kept = [a for a, p in enumerate(PI_0) for _ in range(round(100 * p * wins[a]))]
    truth = PI_0 * wins / (PI_0 * wins).sum()
    np.testing.assert_allclose(fitted("likelihood", kept, [9.0] * len(kept)), truth, atol=1e-4)


def test_advantage_weighting_recovers_the_best_policy_near_the_reference() -> None:
    sampled = [a for a, p in enumerate(PI_0) for _ in range(round(10 * p))]
    A = np.array([-0.1, 0.1, 0.2])
    truth = PI_0 * np.exp(A / 0.2)
    found = fitted("advantage_weighted", sampled, A[sampled], temperature=0.2)
    np.testing.assert_allclose(found, truth / truth.sum(), atol=1e-4)
    # A bound on weights bounds how far one step can pull.
    assert step_weights(np.array([-50.0, 50.0]), 0.2) == pytest.approx([0.0, 20.0])


def test_the_clipped_loss_begins_as_the_policy_gradient_and_ends_where_ratios_are_clipped() -> None:
    sampled = [a for a, p in enumerate(PI_0) for _ in range(round(10 * p))]
    A = np.array([1.0, 0.0, -1.0])
    objective = make_objective("clipped")
    rows = objective.rows([said(a) for a in sampled], [A[[a]] for a in sampled])
    logits = torch.tensor(np.log(PI_0), requires_grad=True)
    for batch in micro_batches(rows, 1000):
        outputs = {"logprobs": logits.log_softmax(0)[(batch.token_ids - FIRST).clamp(0)]}
        loss, metrics = objective.loss(outputs, batch)
        loss.backward()
    assert metrics["old_kl"] == pytest.approx(0, abs=1e-6)
    assert logits.grad is not None
    np.testing.assert_allclose(-logits.grad.numpy(), PI_0 * (A - PI_0 @ A), atol=1e-6)
    end = fitted("clipped", sampled, A[sampled], rate=0.02)
    np.testing.assert_allclose(end[0], 1.28 * PI_0[0], atol=5e-3)
    assert end[2] <= 0.8 * PI_0[2] + 5e-3


def test_direct_advantage_recovers_the_log_ratio_of_its_siblings() -> None:
    """The third action, which is no sibling, takes up what the two leave."""
    end = fitted("direct_advantage", [0, 1], [-0.1, 0.1], temperature=0.2)
    np.testing.assert_allclose(np.log(end[:2] / PI_0[:2]), [-0.5, 0.5], atol=1e-3)


@pytest.mark.parametrize("kind", ["likelihood", "advantage_weighted", "clipped", "direct_advantage"])
def test_a_row_that_weighs_nothing_as_an_idle_rank_gets_changes_nothing(kind: str) -> None:
    objective = make_objective(kind, temperature=0.2)
    (row,) = objective.rows([said(0)], [np.array([0.1])])
    zero = {name: np.zeros_like(column) for name, column in row.columns.items() if "weight" in name}
    idle = replace(row, columns=row.columns | zero)
    losses, slopes = [], []
    for rows in ([row], [row, idle], [idle]):
        (batch,) = micro_batches(rows, 30)
        logprobs = torch.full((len(batch.token_ids),), -1.0, requires_grad=True)
        loss = objective.loss({"logprobs": logprobs}, batch)[0]
        loss.backward()
        losses.append(loss.item())
        slopes.append(logprobs.grad.abs().sum().item())
    assert losses == [pytest.approx(losses[0]), pytest.approx(losses[0]), 0]
    assert slopes == [pytest.approx(slopes[0]), pytest.approx(slopes[0]), 0]
    assert slopes[0] > 0


def test_direct_advantage_is_zero_at_its_target_and_a_step_counts_once_whatever_its_length() -> None:
    long = replace(rollout((1, 1, 1), ((0, 3),)), logprobs=(-1.0, -2.0, -3.0))
    objective = make_objective("direct_advantage", temperature=0.01)
    rows = objective.rows([long, said(0)], [np.array([0.02]), np.array([-5.0])])
    [batch] = micro_batches(rows, 1000)
    assert batch.row_indices == (0, 1)
    moved = torch.tensor([0, 0, -0.5, -1.5, -2.0, 0, 0, float(np.log(PI_0[0])) - 10])  # 2 nats up, 10 down
    loss, metrics = objective.loss({"logprobs": moved}, batch)
    assert loss == pytest.approx(0, abs=1e-6)
    assert metrics["step_log_ratio"] == pytest.approx(6)
    assert metrics["target_clipped_share"] == pytest.approx(0.5)
    still = torch.tensor([0, 0, -1.0, -2.0, -3.0, 0, 0, float(np.log(PI_0[0]))])
    loss, _ = objective.loss({"logprobs": still}, batch)
    assert loss == pytest.approx((0.5 * 2**2 + 0.5 * 10**2) / 2)


def test_only_the_policy_s_own_tokens_are_trained() -> None:
    given = rollout()  # the third of four tokens is a reply
    for kind in ("likelihood", "advantage_weighted", "clipped"):
        options = {"temperature": 0.2} if kind == "advantage_weighted" else {}
        [row] = make_objective(kind, **options).rows([given], [np.array([0.1, -0.1])])
        assert tuple(row.token_ids) == given.token_ids
        assert [bool(w) for w in row.columns["weight"]] == [False, False, True, True, False, True]
        assert row.columns["weight"].sum() == pytest.approx(1)


def test_the_effective_size_is_the_number_of_equal_tokens_and_falls_with_unequal_weights() -> None:
    rollouts, A = [said(0), said(1)], [np.array([0.0]), np.array([0.2 * np.log(3)])]
    assert effective_size(make_objective("likelihood").rows(rollouts, A)) == pytest.approx(2)
    rows = make_objective("advantage_weighted", temperature=0.2).rows(rollouts, A)
    assert effective_size(rows) == pytest.approx(16 / 10)  # weights 1 and 3


def continued(name: str, first: int, **changes: Any) -> Rollout:
    """Returns a continuation of two steps from state 1 of p; its first step is one token."""
    of = {"rollout_id": name, "kind": "continuation", "parent_rollout_ids": ("p",), "start_step_index": 1}
    steps = (Step(1, 1, 0, 1, ""), Step(2, 2, 2, 3, ""))
    made = replace(rollout((1, 0, 1)), steps=steps, response_token_ids=(first, 5, 6))
    return replace(made, **of | changes)


def test_siblings_are_the_distinct_next_steps_of_one_state() -> None:
    a, b, again = continued("a", 20), continued("b", 21), continued("c", 20)
    elsewhere = continued("d", 22, start_step_index=2)
    found = sibling_sets([a, again, b, elsewhere, rollout(kind="whole")])
    assert [[r.rollout_id for r in of] for of in found] == [["a", "b"]]
    assert first_step(a).token_ids == (0, 1, 20)
    assert (first_step(a).loss_mask, len(first_step(a).steps)) == ((1,), 1)


def test_advantages_of_siblings_are_of_the_states_behind_them_or_of_the_reward() -> None:
    ends = replace(continued("b", 21, reward=1.0), steps=(Step(1, 1, 0, 1, ""),))
    values = [np.array([0.5, 0.4]), np.array([0.5])]
    found = sibling_advantages([continued("a", 20, reward=0.0), ends], values)
    np.testing.assert_allclose(found, [-0.3, 0.3])
    close = sibling_advantages([continued("a", 20), continued("b", 21)], [values[0], np.array([0.5, 0.45])])
    assert close is None


def test_training_ends_after_some_looks_since_the_one_that_is_kept() -> None:
    assert not is_over(1, 0)
    assert not is_over(1 + PATIENCE, 1)
    assert is_over(2 + PATIENCE, 1)
    assert is_over(1 + PATIENCE, 0)  # the start was best
    assert best_look([0.3, 0.5, 0.4, 0.5]) == 1


def test_a_level_keeps_its_last_look_and_a_clear_loss_the_look_before() -> None:
    """Each held-out rollout's probability is a level of its own and noise; from look 3 on nothing changes."""
    rng = np.random.default_rng(0)
    own = rng.uniform(0.2, 0.8, 60)  # rollouts differ by far more than looks do: the difference is paired
    kept = []
    for _ in range(300):
        level = np.array([0.0, 0.05, 0.08, *[0.09] * 5])
        looks = own + level[:, None] + rng.normal(0, 0.02, (8, 60))
        kept.append(latest_as_good(looks))
    assert np.mean(np.array(kept) >= 3) > 0.99
    assert np.mean(np.array(kept) == 7) > 0.5  # the best of five equal ones is the last in one of five
    falls = own + np.array([0.0, 0.05, 0.08, 0.04, 0.0])[:, None] + rng.normal(0, 0.02, (5, 60))
    assert latest_as_good(falls) == 2
    assert latest_as_good([[0.3], [0.5], [0.4]]) == 1  # one rollout has no error
    for n in range(1, 8):  # what is kept is the same as before, or the newest
        assert latest_as_good(looks[: n + 1]) in (latest_as_good(looks[:n]), n)


def test_a_tenth_of_the_clusters_is_held_out_always_the_same_and_never_all() -> None:
    clusters = [f"c{i}" for i in range(40)]
    held = held_out_clusters([*clusters, *clusters], seed=3)
    assert len(held) == 4
    assert held == held_out_clusters(reversed(clusters), seed=3) != held_out_clusters(clusters, seed=4)
    assert len(held_out_clusters(["a", "b"], seed=0)) == 1
    with pytest.raises(ArtifactError, match=r"of 1 clusters \(a\).*2 are needed") as raised:
        held_out_clusters(["a", "a"], seed=0)
    assert raised.value.code == 4


def test_a_held_out_probability_is_a_mean_over_the_policy_s_tokens() -> None:
    model, trainer = policy(), TorchTrainer(policy(), head="policy")
    rollouts = [rollout(rollout_id="a"), rollout((1, 1), ((0, 2),), rollout_id="b")]
    means = []
    for r in rollouts:
        ids = torch.tensor([r.token_ids])
        with torch.inference_mode():
            logprobs = model(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor(r.loss_mask)
        means.append(float((logprobs[1:].exp() * mask).sum() / mask.sum()))
    assert probabilities(trainer, rollouts) == pytest.approx(means, rel=1e-5)


def test_the_held_out_gain_begins_at_the_mean_advantage_and_rises_with_the_objective() -> None:
    objective, trainer = (
        make_objective("clipped"),
        TorchTrainer(policy(), head="policy", learning_rate=lambda _: 1e-3),
    )
    good, bad = (rollout((1, 1), ((0, 2),), rollout_id=name) for name in "ab")
    known = with_own_logprobs(trainer, [replace(r, kind="recorded") for r in (good, bad)])
    advantages = [np.array([0.5]), np.array([-0.2])]
    held_out = objective.rows(known, advantages)
    assert held_out_gain(trainer, held_out, objective.loss) == pytest.approx(0.15, abs=1e-6)
    assert held_out_gain(trainer, objective.rows(known[:1], advantages[:1]), objective.loss) == pytest.approx(
        0.5
    )
    for _ in range(3):
        trainer.update(objective.rows(known[:1], advantages[:1]), objective.loss)
    assert (
        0.5 < held_out_gain(trainer, objective.rows(known[:1], advantages[:1]), objective.loss) <= 0.64 + 1e-6
    )
