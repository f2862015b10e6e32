from __future__ import annotations

import math

import pytest
import torch

from pipeline.engines.sampling import choose_tokens


def spread(
    logits: list[float], number: int = 1000, **options: torch.Tensor
) -> tuple[list[float], torch.Tensor]:
    """Returns each token's share over an even grid of uniform numbers, and the log-probabilities."""
    uniforms = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    rows = torch.tensor(logits).expand(number, -1)
    tokens, logprobs = choose_tokens(
        rows, uniforms, options.pop("temperatures", torch.ones(number)), **options
    )
    shares = (torch.bincount(tokens, minlength=len(logits)) / number).tolist()
    return shares, torch.stack([tokens.float(), logprobs])


def test_shares_are_the_probabilities() -> None:
    probabilities = [0.5, 0.2, 0.0, 0.3]
    shares, _ = spread([math.log(p) if p else -1e9 for p in probabilities])
    assert shares == pytest.approx(probabilities, abs=1e-3)


def test_temperature_sharpens_and_logprobs_say_so() -> None:
    shares, chosen = spread([math.log(0.8), math.log(0.2)], temperatures=torch.full((1000,), 0.5))
    assert shares == pytest.approx([0.64 / 0.68, 0.04 / 0.68], abs=1e-3)
    assert chosen[1][chosen[0] == 0].tolist() == pytest.approx([math.log(0.64 / 0.68)] * 941, abs=1e-5)


def test_greedy_takes_the_best_whatever_the_number_and_keeps_the_logprob_of_temperature_one() -> None:
    shares, chosen = spread([math.log(0.4), math.log(0.6)], temperatures=torch.zeros(1000))
    assert shares == [0.0, 1.0]
    assert chosen[1].tolist() == pytest.approx([math.log(0.6)] * 1000, abs=1e-5)


def test_top_k_keeps_the_best_and_renormalises() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.3, 0.2)]
    shares, chosen = spread(logits, top_k=torch.full((1000,), 2))
    assert shares == pytest.approx([0, 4 / 7, 3 / 7, 0], abs=1e-3)
    assert chosen[1][chosen[0] == 1][0].item() == pytest.approx(math.log(4 / 7), abs=1e-5)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.3, 0.2)]
    shares, _ = spread(logits, top_p=torch.full((1000,), 0.65))
    assert shares == pytest.approx([0, 4 / 7, 3 / 7, 0], abs=1e-3)


def test_rows_without_a_filter_are_untouched_beside_rows_with_one() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0]]).expand(2, -1)
    tokens, logprobs = choose_tokens(
        logits, torch.tensor([0.99, 0.99], dtype=torch.float64), torch.ones(2), top_k=torch.tensor([1, -1])
    )
    assert tokens.tolist() == [0, 2]
    assert logprobs.tolist() == pytest.approx([0.0, math.log(1 / 3)], abs=1e-6)


def test_the_largest_uniform_number_never_takes_a_token_of_no_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf")]])
    tokens, _ = choose_tokens(logits, torch.tensor([1 - 2**-53], dtype=torch.float64), torch.ones(1))
    assert tokens.tolist() == [1]
