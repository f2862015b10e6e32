"""Where time goes, and what was done in it."""

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from pipeline.clock import Clock
from pipeline.gpu_sharing import Turns
from pipeline.hardware import GpuUse, host_memory, peak_operations
from pipeline.pace import Pace
from pipeline.planner.operations import forward_operations, head_operations, update_operations
from pipeline.training.protocol import TrainingRow

ROW = TrainingRow(np.arange(8, dtype=np.int32), {"weight": np.array([0, 0, 1, 1, 1, 0, 0, 0], np.float32)})


def config(*, tied: bool = True) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=tied,
    )


class Ticking:
    """A clock's hand that moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_part_within_another_counts_once_and_all_add_up_to_what_passed() -> None:
    hand = Ticking()
    clock = Clock(hand)
    hand.now += 1
    with clock.at("sampling"):
        hand.now += 2
        with clock.at("scoring"):
            hand.now += 4
        hand.now += 8
        with suppress(ValueError), clock.at("scoring"):
            hand.now += 16
            raise ValueError
    assert clock.lap() == {"other": 1, "sampling": 10, "scoring": 20}
    hand.now += 3
    assert clock.lap() == {"other": 3}


class Worked:
    """A trainer whose work takes time by the hand."""

    learning_rate = None

    def __init__(self, hand: Ticking, gpus: int) -> None:
        self.hand, self.gpus = hand, gpus

    def update(self, rows: Any, loss: Any) -> dict[str, float]:
        self.hand.now += 2
        return {"loss": 1.0}

    def offload(self) -> None:
        self.hand.now += 5

    def gpu_use(self) -> list[GpuUse]:
        return [GpuUse("NVIDIA H100 80GB HBM3", 10.0 + i) for i in range(self.gpus)]


def paced(gpus: int, **options: Any) -> tuple[Pace, Ticking]:
    pace, hand = Pace(gpus, **options), Ticking()
    pace.clock.__init__(hand)  # type: ignore[misc]
    return pace, hand


def test_rates_are_by_the_seconds_of_their_part_and_a_share_of_all_gpus() -> None:
    pace, hand = paced(2, half_precision=True)
    trainer = pace.trainer(Worked(hand, 2), config())  # type: ignore[arg-type]
    assert trainer.update([ROW, ROW], None) == {"loss": 1.0}  # type: ignore[arg-type]
    with pace.clock.at("sampling"):
        hand.now += 4
    found = pace.lap(sampled=12)
    assert found["timing_s/update"] == 2
    assert found["perf/trained_tokens_per_s"] == 16 / 2
    assert found["perf/sampled_tokens_per_s"] == 12 / 4
    assert found["perf/mfu"] == pytest.approx(update_operations(config(), [ROW, ROW]) / 2 / (2 * 989e12))
    assert (found["perf/gpu0_peak_gib"], found["perf/gpu1_peak_gib"]) == (10, 11)
    assert not {"perf/mfu", "perf/trained_tokens_per_s", "perf/sampled_tokens_per_s"} & pace.lap().keys()


@pytest.mark.parametrize("options", [{"num_gpus": 0, "half_precision": True}, {"num_gpus": 2}])
def test_without_a_known_peak_no_share_of_it_is_given(options: dict[str, Any]) -> None:
    pace = Pace(**options)
    pace.trainer(Worked(Ticking(), 0), config()).update([ROW], None)  # type: ignore[arg-type]
    assert "perf/mfu" not in pace.lap()
    assert peak_operations("Some other GPU") is None


def test_a_gpu_of_less_power_is_not_taken_for_its_larger_sister() -> None:
    for name in ("H100 NVL", "H100 PCIe", "H200 NVL"):
        assert peak_operations(f"NVIDIA {name}") < peak_operations("NVIDIA H100 80GB HBM3")  # type: ignore[operator]


def test_the_time_in_which_gpus_change_hands_is_no_work() -> None:
    pace, hand = paced(0)
    turns = Turns(True, pace.clock)
    first, _ = (turns.trainer(lambda: Worked(hand, 0)) for _ in range(2))  # type: ignore[arg-type,return-value]
    pace.lap()  # the second took its turn from the first
    pace.trainer(first, config()).update([ROW], None)  # type: ignore[arg-type]
    found = pace.lap()
    assert (found["timing_s/turns"], found["timing_s/update"]) == (5, 2)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_set_on_a_timed_trainer_is_set_on_it(shared: bool) -> None:
    worked = Worked(Ticking(), 0)
    taken = Turns(shared).trainer(lambda: worked)  # type: ignore[arg-type,return-value]
    Pace().trainer(taken, config()).learning_rate = lambda done: 0.5
    assert worked.learning_rate is not None


@pytest.mark.parametrize("tied", [True, False])
def test_operations_are_those_that_torch_counts(tied: bool) -> None:
    """But for norms, which are no products, and the half of attention that a token may not see."""
    made, length = config(tied=tied), 32
    model = Qwen3ForCausalLM(made)
    model.set_attn_implementation("eager")  # whose products are seen
    with FlopCounterMode(display=False) as counted:
        model(torch.arange(length)[None])
    unseen = 2 * made.num_hidden_layers * made.num_attention_heads * made.head_dim * length**2
    ours = length * (forward_operations(made, length) + head_operations(made)) + unseen
    assert ours == pytest.approx(counted.get_total_flops(), rel=0.005)


def test_an_update_takes_three_forward_passes_and_its_head_where_it_trains() -> None:
    body, head = 8 * forward_operations(config(), 8), 3 * head_operations(config())
    assert update_operations(config(), [ROW]) == 3 * (body + head)
    assert update_operations(config(), [ROW], adapters=True) == 2 * (body + head)
    assert update_operations(config(), [ROW], head="critic") == 3 * body


def test_memory_is_that_of_all_processes() -> None:
    before, _ = host_memory()
    code = "held = bytearray(2**28); print(); input()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ, **pipes) as child:
        assert child.stdout is not None
        child.stdout.readline()
        after, peak = host_memory()
        child.communicate(b"\n")
    assert 0.25 <= after - before < 0.5
    assert peak >= after
