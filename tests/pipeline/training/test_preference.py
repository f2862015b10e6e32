"""Direct preference optimisation: hand numbers, a policy that is known, pairs that stay together."""

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.training.network import Network
from pipeline.training.packing import bins_of, micro_batches
from pipeline.training.preference import (
    dpo_loss,
    pair_logprobs,
    pair_rows,
    preference_measures,
    preference_terms,
)
from pipeline.training.torch import TorchTrainer
from tests.pairs import answer, pair, random_pairs
from tests.pipeline.training.conftest import TORCH, Make
from tests.pipeline.training.helpers import VOCAB, copied, moved, policy

LOSS = dpo_loss(beta=0.1, mu=0.0)


def terms(h_w: float, h_l: float, margin: float = 1.0, **options: float) -> float:
    numbers = (torch.tensor([x], dtype=torch.float64) for x in (h_w, h_l, margin))
    return float(preference_terms(*numbers, **{"beta": 0.1, "mu": 0.0} | options))


def test_at_the_reference_the_loss_is_log_two_and_its_slope_is_half_of_beta() -> None:
    assert terms(0, 0) == pytest.approx(math.log(2))
    h = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    preference_terms(h[:1], h[1:], torch.ones(1), beta=0.1, mu=0.0).sum().backward()
    assert h.grad is not None
    assert h.grad.tolist() == pytest.approx([-0.05, 0.05])


def test_a_margin_asks_for_more_of_pairs_whose_rewards_differ_more() -> None:
    assert terms(3, 1, margin=0.5, mu=0.4) == pytest.approx(-math.log(1 / (1 + math.exp(-0.2 + 0.2))))
    assert terms(3, 1, margin=1.0, mu=0.4) > terms(3, 1, margin=0.5, mu=0.4) > terms(3, 1)


def test_it_recovers_the_policy_whose_log_ratios_are_the_rewards_of_the_judge() -> None:
    """Preferences drawn by Bradley and Terry from rewards r make pi ~ pi_0 exp(r / beta)."""
    pi_0, rewards, beta = np.array([0.5, 0.3, 0.2]), np.array([0.0, 0.3, -0.2]), 0.5
    logits = torch.tensor(np.log(pi_0), requires_grad=True)
    wins = list(permutations(range(3), 2))
    share = [1 / (1 + math.exp(rewards[b] - rewards[a])) for a, b in wins]
    said = [pair(f"{a}{b}", answer("w", (10 + a,)), answer("l", (10 + b,))) for a, b in wins]
    first = {f"{a}{b}": (np.log(pi_0[[a]]), np.log(pi_0[[b]])) for a, b in wins}
    rows = pair_rows(said, first)
    for row, part in zip(rows, share, strict=True):
        row.columns["weight"] *= part
    optimizer, batches = torch.optim.SGD([logits], lr=20.0), list(micro_batches(rows, 18))
    for _ in range(200):
        optimizer.zero_grad()
        for batch in batches:
            outputs = {"logprobs": logits.log_softmax(0)[(batch.token_ids - 10).clamp(0)]}
            dpo_loss(beta=beta, mu=0.0)(outputs, batch)[0].backward()
        optimizer.step()
    truth = pi_0 * np.exp(rewards / beta)
    np.testing.assert_allclose(logits.detach().softmax(0).numpy(), truth / truth.sum(), atol=1e-4)


def logprobs_of(model: Any, said: Any) -> torch.Tensor:
    """Returns the sum of log-probabilities of an answer's own tokens, by the model alone."""
    ids = torch.tensor([said.prompt_token_ids + said.response_token_ids])
    chosen = model(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    mask = torch.tensor((0,) * len(said.prompt_token_ids) + said.loss_mask)[1:]
    return (chosen * mask).sum()


def test_loss_and_gradients_are_those_of_whole_sequences_one_by_one() -> None:
    pairs, model, first = random_pairs(9, VOCAB), policy(), policy(seed=1)
    expected = []
    for p in pairs:
        with torch.no_grad():
            before = [logprobs_of(first, side) for side in (p.chosen, p.rejected)]
        h = [logprobs_of(model, side) - b for side, b in zip((p.chosen, p.rejected), before, strict=True)]
        expected.append(-torch.nn.functional.logsigmoid(0.1 * (h[0] - h[1]) - 0.3 * p.margin))
    mean = torch.stack(expected).mean()
    mean.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    reference = pair_logprobs(TorchTrainer(first, head="policy"), pairs)
    network, loss = Network(model, head="policy", piece_tokens=3), 0.0
    for batch in micro_batches(pair_rows(pairs, reference), 60):
        part, metrics = dpo_loss(beta=0.1, mu=0.3)(network(batch), batch)
        part.backward()
        loss += float(part.detach())
        assert metrics.keys() == {"accuracy", "log_ratio_gap", "chosen_log_ratio"}
    assert loss == pytest.approx(float(mean.detach()), rel=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["torch in pieces", slow("zero2_fp32"), slow("zero3")])
def test_every_trainer_keeps_a_pair_together(kind: str, make: Make) -> None:
    """Two ranks hold unequal numbers of micro-batches, so that one of them repeats a pair at no weight."""
    pairs = random_pairs(7, VOCAB)
    trainer, expected = make(kind), make("torch")
    reference, theirs = pair_logprobs(trainer, pairs), pair_logprobs(expected, pairs)
    for name, sides in reference.items():
        for mine, other in zip(sides, theirs[name], strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-4)
    for update in range(3):
        rows = pair_rows(pairs[update:], reference)
        metrics, wanted = trainer.update(rows[::-1], LOSS), expected.update(rows, LOSS)
        if not update:  # which answer is ahead at the reference is a matter of rounding
            del metrics["accuracy"], wanted["accuracy"]
        assert metrics == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert metrics["accuracy"] > 0.5
    capacity = TORCH["torch in pieces"]["micro_batch_tokens"]
    assert len(bins_of([len(row.token_ids) for row in rows], capacity)) > 1


def test_only_the_policy_s_own_tokens_count_and_each_pair_weighs_the_same() -> None:
    replied = answer("w", (5, 6, 7), loss_mask=(1, 0, 1))
    one, other = pair("a", replied), pair("b", answer("w", tuple(range(3, 12))))
    rows = pair_rows([one, other])
    assert (rows[0].columns["weight"] != 0).tolist() == [bool(int(bit)) for bit in "00101001"]
    assert [float(row.columns["weight"].sum()) for row in rows] == pytest.approx([0.5, 0.5])
    assert rows[0].lengths == (5, 3)


def test_measures_are_the_loss_s_and_a_tie_is_half_right() -> None:
    pairs = random_pairs(5, VOCAB)
    trainer = TorchTrainer(policy(), head="policy", learning_rate=lambda done: 1e-2)
    reference = pair_logprobs(trainer, pairs)
    still = preference_measures(pairs, reference, reference, beta=0.1, mu=0.0)
    assert still == pytest.approx(
        {"loss": math.log(2), "accuracy": 0.5, "log_ratio_gap": 0, "chosen_log_ratio": 0}
    )
    trainer.update(pair_rows(pairs, reference), LOSS)
    now = preference_measures(pairs, pair_logprobs(trainer, pairs), reference, beta=0.1, mu=0.0)
    metrics = trainer.update(pair_rows(pairs, reference), LOSS)
    assert now["accuracy"] > 0.5
    assert now == pytest.approx({name: metrics[name] for name in now}, rel=1e-4, abs=1e-6)


def test_a_pair_of_no_weight_changes_nothing() -> None:
    pairs = random_pairs(3, VOCAB)
    trainer = TorchTrainer(policy(), head="policy", learning_rate=lambda done: 1e-2)
    before = copied(trainer.weights())
    rows = pair_rows(pairs, pair_logprobs(trainer, pairs))
    for row in rows:
        row.columns["weight"][:] = 0
    assert trainer.update(rows, LOSS)["loss"] == 0
    assert not moved(trainer, before)
