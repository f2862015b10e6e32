"""The ranking of sibling steps: its gradient, its pairs, and that steps are ranked better with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from critics.fit.held_out import held_out
from critics.fit.loop import fit
from critics.fit.ranking import RANK_COLUMN, RankedSet, clear_pairs, rank_loss, sets_of_update, with_ranking
from critics.fit.rows import critic_rows, normalised
from critics.fit.schedule import schedule
from critics.logit import sigmoid
from pipeline.training import TrainingRow
from pipeline.training.losses import critic_loss
from pipeline.training.rows import micro_batches
from pipeline.types import Label
from tests.critics.test_fitting import Settings, trainer_of

KINDS = sigmoid(np.linspace(-2, 2, 8))  # V of the state after a step of each kind


def test_the_gradient_is_that_of_finite_differences_and_of_autograd() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=6) * 3
    pairs = np.array([[0, 1], [0, 2], [5, 2], [3, 4], [1, 2]])
    loss, gradient = rank_loss(z, pairs)
    tensor = torch.tensor(z, requires_grad=True)
    reference = F.softplus(tensor[pairs[:, 1]] - tensor[pairs[:, 0]]).mean()
    reference.backward()
    assert loss == pytest.approx(reference.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, tensor.grad, atol=1e-12)
    step = 1e-6 * np.eye(6)
    slopes = [(rank_loss(z + h, pairs)[0] - rank_loss(z - h, pairs)[0]) / 2e-6 for h in step]
    np.testing.assert_allclose(gradient, slopes, atol=1e-8)
    assert np.isfinite(rank_loss(np.array([-800.0, 800.0]), np.array([[0, 1]]))[1]).all()


def test_pairs_that_are_called_clear_are_seldom_in_the_wrong_order() -> None:
    rng = np.random.default_rng(1)
    wrong = total = 0
    for _ in range(4000):
        V = rng.random(4)
        found = clear_pairs(rng.binomial(8, V), np.full(4, 8))
        wrong += int((V[found[:, 0]] < V[found[:, 1]]).sum())
        total += len(found)
    assert total > 4000
    assert wrong / total < 0.01
    same = [clear_pairs(rng.binomial(8, 0.5, 4), np.full(4, 8)) for _ in range(2000)]
    assert sum(map(len, same)) / (2000 * 6) < 0.05  # of pairs of equal truth, as two standard errors say
    assert len(clear_pairs(np.array([0, 2]), np.array([2, 2]))) == 0


def state(kind: int, rng) -> np.ndarray:
    return np.array([1, *rng.integers(5, 15, 3), 20 + kind], np.int32)


def sets_of(number: int, seed: int) -> list[RankedSet]:
    """Sets of three kinds of step after one prompt, ordered by what eight continuations of each say."""
    rng = np.random.default_rng(seed)
    sets = []
    while len(sets) < number:
        kinds = rng.choice(8, 3, replace=False)
        prompt = state(0, rng)[:-1]
        pairs = clear_pairs(rng.binomial(8, KINDS[kinds]), np.full(3, 8))
        if len(pairs):
            states = tuple(np.array([*prompt, 20 + kind], np.int32) for kind in kinds)
            sets.append(RankedSet(states, pairs))
    return sets


def labelled(make_rollout, number: int, seed: int):
    """Rollouts of one step whose prompt alone is labelled: values of kinds are nowhere among the labels."""
    rng = np.random.default_rng(seed)
    rollouts, labels = [], []
    for i in range(number):
        kind = int(rng.integers(8))
        tokens = state(kind, rng).tolist()
        rollouts.append(
            make_rollout(
                f"p{seed}-{i}",
                task=f"t{i % 20}",
                num_steps=1,
                prompt_token_ids=tuple(tokens[:4]),
                reward=float(rng.random() < KINDS[kind]),
            )
        )
        k = int(rng.binomial(8, KINDS.mean()))
        labels.append(Label(f"p{seed}-{i}", 0, "bare", 8, k, None, k / 8, 8.0, "continuation", "policy-0"))
    return rollouts, labels


def rightly_ordered(trainer, seed: int) -> float:
    rng = np.random.default_rng(seed)
    states = [state(kind, rng) for kind in range(8) for _ in range(4)]
    outputs = trainer.forward(rows_of(states))
    z = np.array([out["scores"][-1, 0] for out in outputs]).reshape(8, 4)
    i, j = np.triu_indices(8, 1)
    return float(np.mean(z[i] < z[j]))


def rows_of(states):
    return [TrainingRow(tokens) for tokens in states]


@pytest.mark.parametrize("budget", [8, 64, 4096])
def test_rows_carry_the_gradient_of_the_loss_whatever_the_micro_batches(
    tiny_trunk, make_rollout, budget
) -> None:
    trainer = trainer_of(tiny_trunk)
    torch.manual_seed(0)
    with torch.no_grad():
        trainer.model.score.weight.normal_()
    sets = sets_of(5, 0)
    plain = normalised(critic_rows(*labelled(make_rollout, 6, 0)))
    rows, total = with_ranking(trainer, plain, sets, weight=0.7)
    loss = critic_loss(base_logit=0.1)
    trainer.model.zero_grad()
    for batch in micro_batches(rows, budget):
        loss(trainer._network(batch), batch)[0].backward()
    found = {name: p.grad.clone() for name, p in trainer.model.named_parameters()}

    trainer.model.zero_grad()
    for batch in micro_batches(plain, 4096):
        loss(trainer._network(batch), batch)[0].backward()
    [batch] = micro_batches(rows_of([s for one in sets for s in one.states]), 4096)
    scores = trainer._network(batch)["scores"][:, 0]
    ends = dict(zip(batch.row_indices, np.array(batch.starts) + batch.lengths - 1, strict=True))
    z = torch.stack([scores[ends[i]] for i in range(len(ends))]).reshape(len(sets), 3)
    expected = sum(
        F.softplus(own[one.pairs[:, 1]] - own[one.pairs[:, 0]]).mean()
        for own, one in zip(z, sets, strict=True)
    )
    (0.7 * expected).backward()
    assert total == pytest.approx(expected.item(), rel=1e-4)
    for name, p in trainer.model.named_parameters():
        scale = float(p.grad.abs().max())
        assert float((found[name] - p.grad).abs().max()) < 1e-4 * max(scale, 1e-3), name


def test_steps_are_ranked_better_with_the_ranking_loss(tiny_trunk, make_rollout) -> None:
    rows = critic_rows(*labelled(make_rollout, 120, 0))
    validation = held_out(*labelled(make_rollout, 40, 1))
    shares, briers = {}, {}
    for weight in (0.0, 0.2):
        trainer = trainer_of(tiny_trunk)
        told = []
        result = fit(
            trainer,
            rows,
            validation,
            Settings(max_epochs=8, batch_states=20, patience=99, rank_weight=weight),
            seed=0,
            keep=lambda i: None,
            on_update=told.append,
            ranked=sets_of(60, 2),
        )
        shares[weight] = rightly_ordered(trainer, 5)
        briers[weight] = result.evaluations[-1]["brier"]
        assert ("rank_loss" in told[0]) == (weight > 0)
    assert shares[0.0] < 0.75
    assert shares[0.2] > 0.9
    assert briers[0.2] < briers[0.0] + 0.01  # and the values that labels know have not suffered


def test_every_set_has_its_turn_in_every_epoch(make_rollout) -> None:
    rows = critic_rows(*labelled(make_rollout, 50, 0))
    plan = schedule(rows, Settings(batch_states=10))
    for number in (1, 3, 5, 17):
        sets = sets_of(number, 3)
        epoch = [sets_of_update(sets, plan, plan.head + i, 0) for i in range(plan.per_epoch)]
        assert sorted(id(one) for part in epoch for one in part) == sorted(map(id, sets))
        assert max(map(len, epoch)) - min(map(len, epoch)) <= 1
        again = [sets_of_update(sets, plan, plan.head + i, 0) for i in range(plan.per_epoch)]
        assert [list(map(id, part)) for part in again] == [list(map(id, part)) for part in epoch]


def test_idle_ranks_carry_no_gradient() -> None:
    """DeepSpeed repeats a row on ranks that lack one, with columns of weights zeroed by their name."""
    from pipeline.training import TrainingRow
    from pipeline.training.deepspeed import _without_weight

    row = TrainingRow(np.arange(3), {RANK_COLUMN: np.ones(3), "weight": np.ones(3)})
    assert not any(column.any() for column in _without_weight(row).columns.values())
