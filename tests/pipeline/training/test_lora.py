"""Adapters, added to what they adapt."""

import pytest
import torch

from pipeline.training.lora import merged_run


@pytest.mark.parametrize(("rows", "width", "rank"), [(16, 24, 4), (151, 63, 3), (64, 16, 16)])
def test_a_merged_weight_is_the_same_to_the_bit_however_ranks_cut_it(
    rows: int, width: int, rank: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    base, up, down = (
        torch.randn(shape, generator=generator) for shape in ((rows, width), (rows, rank), (rank, width))
    )
    whole = merged_run(base.flatten(), 0, width, down, up, 2.0)
    torch.testing.assert_close(whole.view(rows, width), base + 2 * up @ down)
    for world in range(2, 10):
        size = -(-base.numel() // world)
        runs = base.flatten().split(size)
        parts = [merged_run(run, place * size, width, down, up, 2.0) for place, run in enumerate(runs)]
        assert torch.equal(torch.cat(parts), whole)
