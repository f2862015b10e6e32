"""What a rank holds while it starts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.processes.shared_weights import SharedWeights
from pipeline.training.deepspeed_rank import Rank
from pipeline.training.lora import add_adapters
from tests.pipeline.training.helpers import policy


class Divider:
    """Stands in for DeepSpeed: leaves half of each weight, and notes how many bytes were whole at once."""

    def __init__(self, model: torch.nn.Module, untouched: dict[str, int]) -> None:
        self.model, self.untouched = model, untouched
        self.divided: list[str] = []
        self.most = 0

    def _convert_to_zero_parameters(self, parameters: list[Any]) -> None:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        filled = [p for n, p in self.model.named_parameters() if p.data_ptr() != self.untouched[n]]
        whole = [p for p in filled if names[id(p)] not in self.divided]
        self.most = max(self.most, sum(p.nbytes for p in whole))
        for parameter in parameters:
            self.divided.append(names[id(parameter)])
            parameter.data = parameter.data.flatten()[::2].clone()


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_rank_that_divides_weights_holds_one_whole_weight_at_a_time(lora_rank: int) -> None:
    start, model, shared = policy(), policy(seed=3), SharedWeights()
    stored = dict(start.named_parameters())
    if lora_rank:
        pytest.importorskip("peft", reason="pip install -e '.[lora]'")
        add_adapters(model, lora_rank, 8)
    rank = object.__new__(Rank)
    layout = shared.write(stored, torch.bfloat16)
    rank._setup = SimpleNamespace(weights=layout, dtype=torch.bfloat16)  # type: ignore[assignment]
    rank._device = torch.device("cpu")
    divider = Divider(model, {name: p.data_ptr() for name, p in model.named_parameters()})
    rank._fill(model, divider)
    assert sorted(divider.divided) == sorted(name for name, _ in model.named_parameters())
    assert divider.most == max(p.numel() for p in start.parameters()) * 2
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            wanted = stored[name.replace(".base_layer", "")].to(torch.bfloat16).flatten()[::2]
            assert torch.equal(parameter, wanted)
    shared.close()
