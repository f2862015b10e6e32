import math

import numpy as np
import pytest
import torch

from pipeline.credit import LossOptions
from pipeline.training.losses import clipped_policy_terms, critic_loss, k3, policy_loss, sft_loss
from pipeline.training.packing import Batch

DEFAULTS = LossOptions()


def batch(**columns: list[float]) -> Batch:
    tensors = {name: torch.tensor(column, dtype=torch.float32) for name, column in columns.items()}
    length = len(next(iter(columns.values())))
    return Batch(torch.zeros(length, dtype=torch.long), (length,), tensors, (0,), (length,))


def term(ratio: float, advantage: float, options: LossOptions = DEFAULTS) -> tuple[float, float]:
    """Returns one token's loss and its derivative by the log-probability."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    zero, a = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    loss = clipped_policy_terms(logprob, zero, a, options).sum()
    loss.backward()
    assert logprob.grad is not None
    return loss.item(), logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on policy: the plain policy gradient
        (1.2, 1.0, -1.2, -1.2),  # inside the wider upper clip
        (1.5, 1.0, -1.28, 0.0),  # raised enough
        (0.5, 1.0, -0.5, -0.5),  # a good token that became rarer is never clipped
        (0.5, -1.0, 0.8, 0.0),  # lowered enough
        (3.0, -1.0, 3.0, 3.0),  # a bad token that became likelier keeps its gradient
        (50.0, -2.0, 20.0, 0.0),  # until the dual clip
        (1.0, 0.5, -0.5, -0.5),  # which is for bad tokens alone
    ],
)
def test_clipped_loss_and_gradient_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    assert term(ratio, advantage) == pytest.approx((loss, gradient))


def test_without_dual_clip_the_loss_of_a_bad_token_grows_with_its_ratio_but_stays_finite() -> None:
    unbounded = LossOptions(dual_clip=None)
    assert term(50.0, -1.0, unbounded)[0] == pytest.approx(50.0)
    assert term(math.exp(500), -1.0, unbounded)[0] == pytest.approx(math.exp(20), rel=1e-5)


@pytest.mark.parametrize(
    ("difference", "value", "gradient"),
    [
        (0.0, 0.0, 0.0),
        (1.0, math.e - 2.0, 1.0 - math.e),
        (-3.0, math.exp(-3.0) + 2.0, 1.0 - math.exp(-3.0)),
        # Without the bound: -19, -147, -2,980, -22,025, -442,412, against about 1 for a token with A = 1.
        *((d, 10.0, 0.0) for d in (3.0, 5.0, 8.0, 10.0, 13.0, -12.0)),
    ],
)
def test_k3_and_its_gradient_end_at_a_value_of_ten(difference: float, value: float, gradient: float) -> None:
    logprob = torch.tensor([-20.0], dtype=torch.float64, requires_grad=True)
    estimate = k3(logprob, logprob.detach() + difference)
    estimate.sum().backward()
    assert logprob.grad is not None
    assert (estimate.item(), logprob.grad.item()) == pytest.approx((value, gradient))


def test_policy_loss_weighs_tokens_kl_and_engine_gap() -> None:
    columns = batch(
        weight=[0.0, 0.5, 0.5],
        advantages=[math.nan, 1.0, -2.0],  # what has no weight is not looked at
        old_logprobs=[0.0, -2.0, -2.0],
        engine_logprobs=[0.0, -2.0 - math.log(4.0), -2.0 + math.log(2.0)],
        ref_logprobs=[0.0, -2.0, -3.0],
    )
    logprobs = torch.tensor([0.0, -2.0, -2.0], requires_grad=True)
    loss, metrics = policy_loss(LossOptions(kl=0.1))({"logprobs": logprobs}, columns)
    # engine weights min(4, 2) = 2 and 1/2; losses -1 and 2; k3(-1) = e^-1 at the last token
    assert loss.item() == pytest.approx(0.5 * 2 * -1 + 0.5 * 0.5 * 2 + 0.1 * 0.5 * math.exp(-1))
    loss.backward()
    assert logprobs.grad is not None
    of_kl = 0.1 * 0.5 * (1 - math.exp(-1))
    np.testing.assert_allclose(logprobs.grad, [0, 0.5 * 2 * -1, 0.5 * 0.5 * 2 + of_kl], rtol=1e-5)
    assert metrics["engine_gap"].item() == pytest.approx(0.5 * (math.log(4) + math.log(2)))
    assert metrics["sampled_entropy"].item() == pytest.approx(2.0)
    assert metrics["old_kl"].item() == 0.0


def test_clip_shares_count_tokens_by_weight() -> None:
    """Raised too far with A > 0, lowered too far or raised beyond the dual clip with A < 0; no others."""
    ratios, advantages = zip(
        *((1.6, 1.0), (0.6, -1.0), (20.0, -1.0)),  # one of each share
        *((1.0, 1.0), (1.0, -1.0), (1.6, 0.0), (0.6, 0.0), (20.0, 0.0), (0.6, 0.5)),
        strict=True,
    )
    columns = batch(
        weight=[1 / 16, 1 / 8, 1 / 4, *[1.0] * 6],
        advantages=list(advantages),
        old_logprobs=[-4.0] * 9,
        engine_logprobs=[-4.0] * 9,
    )
    _, metrics = policy_loss(LossOptions())({"logprobs": torch.tensor(ratios).log() - 4.0}, columns)
    shares = [metrics[f"{name}_share"].item() for name in ("clip_high", "clip_low", "dual_clip")]
    assert shares == [1 / 16, 1 / 8, 1 / 4]


def test_a_token_at_a_bound_itself_is_not_counted_as_clipped() -> None:
    """Its gradient is not gone yet."""
    moved = torch.tensor([0.5, -0.5, 2.0])
    above, below, dual = moved.exp().tolist()
    columns = batch(
        weight=[1.0] * 3, advantages=[1.0, -1.0, -1.0], old_logprobs=[-4.0] * 3, engine_logprobs=[-4.0] * 3
    )
    options = LossOptions(clip_low=1 - below, clip_high=above - 1, dual_clip=dual)
    logprobs = (moved - 4.0).requires_grad_()
    loss, metrics = policy_loss(options)({"logprobs": logprobs}, columns)
    assert [metrics[f"{name}_share"].item() for name in ("clip_high", "clip_low", "dual_clip")] == [0.0] * 3
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.all()


def test_sft_loss_is_the_weighted_negative_logprob() -> None:
    loss, _ = sft_loss({"logprobs": torch.tensor([[0.0, -2.0, -4.0]])}, batch(weight=[0.0, 0.5, 0.5]))
    assert loss.item() == pytest.approx(3.0)


def test_critic_loss_is_lowest_at_the_soft_target_and_zero_logit_predicts_the_base_rate() -> None:
    read = {"weight": [1.0, 0.0], "targets": [0.3, math.nan]}
    columns = batch(**read, error_weights=[0.0, 2.0], error_targets=[math.nan, 1.0])
    base = math.log(0.3 / 0.7)
    scores = torch.tensor([[0.0, 9.0], [9.0, 0.0]], requires_grad=True)
    loss, metrics = critic_loss(base_logit=base)({"scores": scores}, columns)
    loss.backward()
    entropy = -(0.3 * math.log(0.3) + 0.7 * math.log(0.7))
    assert metrics["value_loss"].item() == pytest.approx(entropy)
    assert metrics["error_loss"].item() == pytest.approx(2 * math.log(2))
    assert loss.item() == pytest.approx(entropy + 0.5 * 2 * math.log(2))
    assert scores.grad is not None
    # value at the first read-out: already right; error at the second: .5 * 2 * (1/2 - 1); nothing elsewhere
    np.testing.assert_allclose(scores.grad, [[0.0, 0.0], [0.0, -0.5]], atol=1e-7)
    for loss_of_values, given in ((critic_loss(error_weight=0.0), columns), (critic_loss(), batch(**read))):
        loss, metrics = loss_of_values({"scores": scores}, given)
        assert metrics.keys() == {"value_loss"}
        assert loss.item() == pytest.approx(math.log(2))
