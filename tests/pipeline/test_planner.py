import json
from collections.abc import Callable
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen3Config

from pipeline.planner.activations import Forward, Pass, pass_bytes, scoring_bytes
from pipeline.planner.memory import Training, reference_phase, scoring_phase, shape_of, training_phase
from pipeline.ragged import ATTENTION_NAME, run_packed
from pipeline.training import TrainingRow
from pipeline.training.attention import Packing
from pipeline.training.lora import add_adapters
from pipeline.training.network import Network
from pipeline.training.packing import micro_batches

MODELS = Path(__file__).parents[2] / "configs" / "models"


def small(layers=3):
    return Qwen3Config(
        vocab_size=200, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, intermediate_size=96, max_position_embeddings=256,
        tie_word_embeddings=True,
    )  # fmt: skip


def test_qwen3_8b_has_its_published_sizes():
    content = json.loads((MODELS / "qwen3-8b.json").read_text())
    shape = shape_of(AutoConfig.for_model(content.pop("model_type"), **content))
    assert shape.parameters == 8_190_735_360
    assert 2 * shape.cache_entries == 147_456  # bytes a token in bf16


def allocations(call: Callable[[], Any]):
    """Returns the bytes that torch's allocator holds after a call, its result included, and at its peak."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        result = call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = list(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
    del result
    return held[-1], max(held)


def rows(lengths: list[int]) -> list[TrainingRow]:
    return [TrainingRow(np.zeros(length, np.int32)) for length in lengths]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("lengths", [[96], [32, 31, 32]])
def test_what_a_pass_without_gradient_holds_is_what_the_real_model_allocates(lengths, on_gpu):
    config = small()
    model = AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation(ATTENTION_NAME)
    token_ids = torch.zeros(sum(lengths), dtype=torch.long)
    how = Forward(tokens=sum(lengths), row_tokens=max(lengths), on_gpu=on_gpu)
    with torch.no_grad():
        packing = Packing(lengths, repeat_heads=on_gpu)
        held, peak = allocations(lambda: run_packed(model.base_model, token_ids, packing))
    assert scoring_bytes(config, how) == pytest.approx(peak, rel=0.02)
    assert held < peak


@pytest.mark.parametrize(
    ("head", "lora_rank", "half", "recompute"),
    [
        *product(["policy"], [0], ["", "products"], [False, True]),
        ("policy", 0, "weights", True),
        *(("policy", 4, half, True) for half in ("products", "weights")),
        ("policy", 4, "", False),
        ("critic", 0, "products", True),
    ],
)
def test_what_an_updates_pass_holds_is_what_the_real_network_allocates(head, lora_rank, half, recompute):
    if lora_rank:
        pytest.importorskip("peft", reason="pip install -e '.[lora]'")
    config = small()
    kind = AutoModelForCausalLM if head == "policy" else AutoModelForSequenceClassification
    model = kind.from_config(config)
    if lora_rank:
        add_adapters(model, lora_rank, lora_rank)
    if half == "weights":
        model = model.to(torch.bfloat16)
    dtype = "bfloat16" if half == "products" else "float32"
    network = Network(model, head=head, piece_tokens=32, recompute=recompute, compute_dtype=dtype)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda which: setattr(which, "grad", None))
    [batch] = micro_batches(rows([192, 191, 17]), 400)

    def forward():
        [outputs] = network(batch).values()
        return outputs

    def update():
        forward().sum().backward()

    update()
    how = Forward(400, 192, half == "weights", half == "products", lora_rank=lora_rank)
    first, planned = pass_bytes(config, Pass(how, recompute, 32, head == "policy"))
    assert first == pytest.approx(allocations(forward)[1], rel=0.06)  # attention on a CPU has a scratch
    assert planned == pytest.approx(allocations(update)[1], rel=0.03)


@pytest.mark.parametrize(
    ("width", "on_gpu", "zero_stage", "keeps"),
    [
        (1024, True, 0, True),
        (1024, True, 2, True),
        (1024, True, 3, False),
        (1024, False, 2, False),
        (64, True, 2, False),
    ],
)
def test_a_reference_of_compiled_layers_keeps_their_inputs(width, on_gpu, zero_stage, keeps):
    config = small(layers=30)
    config.hidden_size = width
    how = Training(Forward(512, 128, half_weights=True, on_gpu=on_gpu), zero_stage=zero_stage, recompute=True)
    more = (
        reference_phase(config, how).device["activations"]
        - scoring_phase(config, how.forward).device["activations"]
    )
    assert (more > 20 * 512 * width * 2) == keeps
    assert (more == 0) != keeps


def test_scoring_in_fp32_takes_no_more_for_longer_rows():
    """Scores of 4 heads, 4,096 x 4,096 in fp32, would take 268 MB."""
    phases = [scoring_phase(small(), Forward(4096, row, on_gpu=True)) for row in (512, 4096)]
    short, long = (phase.device["activations"] for phase in phases)
    assert long <= short < 20e6


def test_activations_grow_with_tokens_and_shrink_with_recompute_and_bf16():
    def activations(tokens=4096, recompute=False, **changes):
        how = Training(Forward(tokens, 512, **changes), recompute=recompute)
        return training_phase(small(8), how).device["activations"]

    assert activations(8192) == pytest.approx(2 * activations(), rel=0.01)
    assert activations(recompute=True) < 0.3 * activations()
    assert activations(half_weights=True) < 0.8 * activations()


def test_zero_divides_what_it_says_it_divides():
    config, half = small(), Forward(4096, 512, half_weights=True)
    count = shape_of(config).parameters
    zero2, zero3 = (training_phase(config, Training(half, "deepspeed", stage, 4)).device for stage in (2, 3))
    assert zero2["weights"] == 2 * count
    assert zero3["weights"] == 2 * count // 4
    assert zero2["gradients"] == 4 * count // 4
    assert zero3["gradients"] == 8 * count // 4
    assert zero2["optimizer"] == 12 * count // 4
    offloaded = training_phase(config, Training(half, "deepspeed", 3, 4, offload=True))
    assert "optimizer" not in offloaded.device
    assert offloaded.host["master copy, moments, gradients"] == pytest.approx(20 * count, rel=0.01)
