"""Packed attention equals each row's own attention, in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from pipeline.training.attention import ATTENTION_NAME, Packing, check_packable, run_packed


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [50, 45, 20, 3, 1], [1, 30, 2], [17] * 3 + [2] * 4])
def test_each_row_attends_as_if_alone(lengths: list[int]) -> None:
    torch.manual_seed(0)
    number, heads, kv_heads, width = sum(lengths), 4, 2, 8
    shapes = [(1, heads, number, width), *[(1, kv_heads, number, width)] * 2]
    query, key, value = tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    got = Packing(lengths).attend(query, key, value, 0.3)
    parts, start = [], 0
    for length in lengths:
        q, k, v = (tensor[:, :, start : start + length] for tensor in tensors)
        alone = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
        parts.append(alone.transpose(1, 2))
        start += length
    expected = torch.cat(parts, dim=1)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    coefficients = torch.randn_like(got)
    for mine, reference in zip(
        torch.autograd.grad((got * coefficients).sum(), tensors),
        torch.autograd.grad((expected * coefficients).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-5)


def test_a_packed_model_gives_each_row_the_states_of_a_plain_pass() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            max_position_embeddings=64,
            initializer_range=0.2,
        )
    ).eval()
    rows = [torch.randint(0, 30, (length,)) for length in (20, 19, 7, 1)]
    with torch.inference_mode():
        expected = [model.model(row[None]).last_hidden_state[0] for row in rows]
        model.set_attn_implementation(ATTENTION_NAME)
        got = run_packed(model.model, torch.cat(rows), Packing([len(row) for row in rows]))
    torch.testing.assert_close(got, torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_a_model_without_a_packing_or_with_other_layers_is_refused() -> None:
    from types import SimpleNamespace

    with pytest.raises(ValueError, match="sliding_attention"):
        check_packable(SimpleNamespace(layer_types=["full_attention", "sliding_attention"]))
    with pytest.raises(ValueError, match="at least one token"):
        Packing([3, 0])
