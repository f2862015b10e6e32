"""Layers that torch compiles, on a CPU: the same numbers, scoring as training, and few kernels to make."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from pipeline.training import network
from pipeline.training.fusing import LEAST_WIDTH, pays
from pipeline.training.packing import Batch
from pipeline.training.torch import TorchTrainer
from tests.pipeline.training.helpers import LOSS, SETTINGS, policy, policy_training_rows

pytestmark = [  # torch does both itself
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
ROWS = [policy_training_rows(seed, num) for seed, num in enumerate((7, 3, 1))]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Passes on threads side by side would compile side by side, which torch cannot."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.set_num_threads(before)


def trainer(monkeypatch: pytest.MonkeyPatch, *, fused: bool, **options: Any) -> TorchTrainer:
    monkeypatch.setattr(network, "pays", lambda _: fused)
    return TorchTrainer(policy(), head="policy", recompute=True, **SETTINGS, **options)


def passes(found: TorchTrainer, rows: Any) -> tuple[dict[str, float], list[Any], dict[int, Any]]:
    """Returns what an update reports, scores before it, and the log-probabilities that it saw."""
    seen: dict[int, Any] = {}

    def watched(outputs: Any, batch: Batch) -> Any:
        seen.update(batch.unpacked({"logprobs": outputs["logprobs"]}))
        return LOSS(outputs, batch)

    scored = found.forward(rows)
    return found.update(rows, watched), scored, seen


@pytest.mark.slow  # kernels are made by the C++ compiler
@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=["weights", "adapters"])
def test_compiled_layers_learn_the_same(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    ours, plain = (trainer(monkeypatch, fused=fused, **options) for fused in (True, False))
    for rows in ROWS:
        (mine, scores, _), (theirs, expected, _) = passes(ours, rows), passes(plain, rows)
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)
        for a, b in zip(scores, expected, strict=True):
            np.testing.assert_allclose(a["logprobs"], b["logprobs"], atol=1e-5)
    made = counters["stats"]["unique_graphs"]
    assert made > 0
    for rows in ROWS:
        passes(ours, rows)
        ours.forward(rows, adapted=False)
    with_other_adapters = 8 if options else 0
    assert counters["stats"]["unique_graphs"] <= made + with_other_adapters


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_scores_is_what_trains(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """To the bit on a CPU, and by the same kernels, which a GPU needs to say so (`benchmarks.gpu_speed`)."""
    found = trainer(monkeypatch, fused=True, compute_dtype="bfloat16")
    for rows in ROWS:
        found.forward(rows)
    made = counters["stats"]["unique_graphs"]
    for rows in ROWS:
        _, scored, seen = passes(found, rows)
        for i, row in enumerate(rows):
            asked = row.columns["weight"] != 0
            np.testing.assert_array_equal(scored[i]["logprobs"][asked], seen[i]["logprobs"][asked])
    assert counters["stats"]["unique_graphs"] == made


def test_nothing_is_compiled_without_a_gpu() -> None:
    model = policy()
    model.config.hidden_size = LEAST_WIDTH
    assert not pays(model)
