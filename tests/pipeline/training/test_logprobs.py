import pytest
import torch

from pipeline.training import logprobs as module
from pipeline.training.logprobs import chosen_logprobs


def problem() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(37, 16, generator=generator)
    weight = torch.randn(101, 16, generator=generator) * 0.5
    targets = torch.randint(0, 101, (37,), generator=generator)
    return [hidden.requires_grad_(), weight.requires_grad_(), targets]


def whole(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight.T).log_softmax(1).gather(1, targets[:, None])[:, 0]


@pytest.mark.parametrize("piece_tokens", [1, 36, 37, 1000])
@pytest.mark.parametrize("entries", [1, 10, 101, 1000])
def test_values_and_gradients_are_those_of_the_whole_matrix(
    piece_tokens: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TILE_ENTRIES", entries)
    hidden, weight, targets = problem()
    coefficients = torch.linspace(-1, 2, len(targets))
    expected = whole(hidden, weight, targets)
    expected_gradients = torch.autograd.grad((expected * coefficients).sum(), [hidden, weight])
    got = chosen_logprobs(hidden, weight, targets, piece_tokens=piece_tokens)
    gradients = torch.autograd.grad((got * coefficients).sum(), [hidden, weight])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    for mine, reference in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("entries", [10, 1000])
def test_half_precision_weights_give_float_logprobs_and_gradients_near_the_exact_ones(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TILE_ENTRIES", entries)
    hidden, weight, targets = problem()
    exact_gradients = torch.autograd.grad(whole(hidden, weight, targets).sum(), [hidden, weight])
    half = [tensor.detach().bfloat16().requires_grad_() for tensor in (hidden, weight)]
    got = chosen_logprobs(*half, targets, piece_tokens=8)
    unrounded = whole(half[0].float(), half[1].float(), targets)
    torch.testing.assert_close(got, unrounded, rtol=0, atol=1e-5)  # the logits are fp32
    for mine, reference in zip(torch.autograd.grad(got.sum(), half), exact_gradients, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine - reference).norm() < 0.02 * reference.norm()


def test_logits_of_no_more_than_a_tile_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    project = module._logits
    monkeypatch.setattr(
        module, "_logits", lambda *args: sizes.append(len(args[0]) * len(args[1])) or project(*args)
    )
    monkeypatch.setattr(module, "TILE_ENTRIES", 20)
    chosen_logprobs(*problem(), piece_tokens=10).sum().backward()
    assert max(sizes) == 10 * 20
    assert sum(sizes) == 2 * 37 * 101
