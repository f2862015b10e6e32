import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.processes.shared_weights import SharedWeights
from pipeline.training import deepspeed_rank
from pipeline.training.deepspeed_rank import MOMENTS, Rank

SHAPES = {"embedding": (8, 4), "large": (16, 8), "b": (4, 4), "c": (4, 4), "norm": (4,)}


class Gathering:
    """Stands in for DeepSpeed's gathering, and counts the bytes of what is alive of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.most = 0
        monkeypatch.setattr(deepspeed_rank, "whole_tensor", self.whole)

    def whole(self, parameter: torch.Tensor, kind: str = "weight") -> torch.Tensor:
        gathered = parameter.detach().clone()
        self.alive.append(weakref.ref(gathered))
        self.most = max(self.most, sum(t.nbytes for ref in self.alive if (t := ref()) is not None))
        return gathered


def test_a_hand_off_holds_one_gathered_tensor_and_a_checkpoint_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = 4 * 50  # of fp32 numbers: several small tensors, less than a large one
    largest = 4 * 16 * 8
    monkeypatch.setattr(deepspeed_rank, "PART_BYTES", part)
    found: set[str] = set()
    for number in (0, 1):
        rank = object.__new__(Rank)  # it has parameters and nothing else
        rank._rank, rank._world, rank._shared = number, 2, SharedWeights()
        rank._parameters = {
            f"model.{name}": torch.nn.Parameter(torch.ones(*shape)) for name, shape in SHAPES.items()
        }
        gathering = Gathering(monkeypatch)
        assert (rank.gather_weights() is not None) == (number == 0)
        assert len(gathering.alive) == len(SHAPES)
        assert gathering.most == largest
        gathering = Gathering(monkeypatch)
        rank.save(tmp_path)
        assert gathering.most <= 2 * largest  # on a CPU: one is kept, and the next gathered
        files = list(tmp_path.glob(f"part-{number:05d}-of-00002-*.safetensors"))
        assert len(files) > 2
        for file in files:
            tensors = load_file(file)
            assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= part
            assert not found & tensors.keys()
            found |= tensors.keys()
    assert found == {f"{kind}.{name}" for kind in ("weight", *MOMENTS) for name in SHAPES}
