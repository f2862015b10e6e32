from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from pipeline.training.attention import Packing, _asks_for_fewer_keys


@pytest.mark.parametrize("repeat_heads", [False, True])
@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [50, 45, 20, 3, 1], [1, 30, 2], [17] * 3 + [2] * 4])
def test_each_row_attends_as_if_alone(lengths: list[int], repeat_heads: bool) -> None:
    torch.manual_seed(0)
    number, heads, kv_heads, width = sum(lengths), 4, 2, 8
    shapes = [(1, heads, number, width), *[(1, kv_heads, number, width)] * 2]
    query, key, value = tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    got = Packing(lengths, repeat_heads=repeat_heads).attend(0, query, key, value, 0.3)
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


def test_off_the_cpu_fp32_rows_attend_with_what_a_gpus_memory_efficient_kernel_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes no mask, and as many heads of keys as of queries; else torch holds T x T scores."""
    seen: list[tuple[int, int, bool, object]] = []

    def attention(query: Any, key: Any, value: Any, **how: Any) -> torch.Tensor:
        seen.append((key.shape[1], value.shape[1], how["enable_gqa"], how.get("attn_mask")))
        return torch.empty_like(query)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)  # it does not know tensors on meta
    query, key = (torch.empty(1, heads, 12, 8, device="meta") for heads in (4, 2))
    Packing([7, 5], "meta").attend(0, query, key, key, 0.3)
    assert seen == [(4, 4, False, None)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_attends_in_fp32_and_under_autocast_without_whole_matrices() -> None:
    query, key = (torch.randn(1, heads, 8192, 128, device="cuda") for heads in (16, 8))
    for half in (False, True):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            Packing([5000, 3192], "cuda").attend(0, query, key, key, 0.1)
            assert torch.cuda.max_memory_allocated() - before < 16 * 5000**2 * 2


def test_under_autocast_attention_computes_in_half_precision_whatever_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Qwen3's norms of queries and keys give fp32 there, which would keep a GPU from its fused kernel."""
    given = []
    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *tensors, **how: given.extend(t.dtype for t in tensors) or attention(*tensors, **how),
    )
    query, key = (torch.randn(1, heads, 12, 8) for heads in (4, 2))
    with torch.autocast("cpu", torch.bfloat16):
        assert Packing([7, 5]).attend(0, query, key, key.bfloat16(), 0.3).dtype == torch.bfloat16
    assert given == [torch.bfloat16] * 3


def test_a_kernel_is_told_of_fewer_heads_of_keys_if_it_asks() -> None:
    """torch 2.11's takes them as they are, and knows no such argument."""
    assert not _asks_for_fewer_keys(lambda query, *, scale=None: None)
    assert _asks_for_fewer_keys(lambda query, *, enable_gqa=False: None)


def test_rows_have_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Packing([3, 0])
