"""Our DPO loss and its gradients are those of TRL's DPOTrainer on the same rows.

`RECORD_GOLDEN=1 python -m pytest -m slow -k of_trl` records tests/golden/trl.json anew.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="make setup-real-model installs it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of other libraries
]

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402
from trl.trainer.dpo_trainer import DataCollatorForPreference  # noqa: E402

from pipeline.types import Answer, Pair  # noqa: E402
from tests.env.adapters.played import make_tokenizer  # noqa: E402
from tests.golden.numbers import dpo_backward, loss_and_gradients, preference_material  # noqa: E402
from tests.pairs import random_pairs  # noqa: E402

VOCAB = 500


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
        initializer_range=0.2, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def trainer_of(folder: Path, policy: Any, reference: Any) -> Any:
    """Returns a trainer of TRL; pairs are given to its loss by hand."""
    one = {"prompt": "a", "chosen": "b", "rejected": "c"}
    return DPOTrainer(
        model=policy,
        ref_model=reference,
        processing_class=make_tokenizer(folder / "tokenizer"),
        train_dataset=Dataset.from_list([one]),
        args=DPOConfig(
            output_dir=str(folder / "out"), beta=0.1, use_cpu=True, bf16=False, report_to=[],
            gradient_checkpointing=False,
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trainer_of(tmp_path_factory.mktemp("dpo"), model_of(0), model_of(1))


def collated(pairs: list[Pair], size: int) -> list[dict[str, torch.Tensor]]:
    """Returns batches of pairs as TRL makes them."""
    collate = DataCollatorForPreference(pad_token_id=0)
    rows = [
        {
            "prompt_ids": list(p.chosen.prompt_token_ids),
            "chosen_ids": list(p.chosen.response_token_ids),
            "rejected_ids": list(p.rejected.response_token_ids),
        }
        for p in pairs
    ]
    return [collate(rows[i : i + size]) for i in range(0, len(rows), size)]


def their_gradients(trainer: Any, batches: list[dict[str, torch.Tensor]], total: int) -> tuple[float, Any]:
    """Returns the mean loss over pairs and its gradients, as TRL computes them batch by batch."""
    trainer.model.zero_grad()
    loss = 0.0
    for batch in batches:
        part = trainer.compute_loss(trainer.model, batch) * (len(batch["input_ids"]) / 2 / total)
        part.backward()
        loss += float(part.detach())
    return loss, {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


def our_gradients(pairs: list[Pair]) -> tuple[float, Any]:
    """Returns the same of copies of TRL's models, by our packing, output layer and loss."""
    policy = model_of(0)
    loss = dpo_backward(policy, model_of(1), pairs, micro_batch_tokens=2000)
    return loss, {name: p.grad for name, p in policy.named_parameters()}


def assert_equal(ours: tuple[float, Any], theirs: tuple[float, Any]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        torch.testing.assert_close(
            ours[1][name], gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max())
        )


def test_loss_and_gradients_of_a_thousand_pairs_are_those_of_trl(theirs: Any) -> None:
    pairs = [p for p in random_pairs(3000, VOCAB) if p.match == "prompt" and all(p.chosen.loss_mask)][:1000]
    assert len(pairs) == 1000
    found = their_gradients(theirs, collated(pairs, 50), len(pairs))
    assert abs(found[0] - math.log(2)) > 0.01  # the policy is not its reference
    assert_equal(our_gradients(pairs), found)


def test_replies_and_other_prompts_are_masked_as_trl_masks_them(theirs: Any) -> None:
    """TRL's rows cannot say so, but its loss takes any mask."""
    pairs = random_pairs(99, VOCAB, seed=1)
    sides: list[Answer] = [*(p.chosen for p in pairs), *(p.rejected for p in pairs)]
    ids = [torch.tensor(side.prompt_token_ids + side.response_token_ids) for side in sides]
    masks = [torch.tensor((0,) * len(s.prompt_token_ids) + s.loss_mask) for s in sides]
    pad = torch.nn.utils.rnn.pad_sequence
    batch = {
        "input_ids": pad(ids, batch_first=True),
        "attention_mask": pad([torch.ones_like(i) for i in ids], batch_first=True),
        "completion_mask": pad(masks, batch_first=True),
    }
    assert_equal(our_gradients(pairs), their_gradients(theirs, [batch], len(pairs)))


def test_the_golden_numbers_are_trl_s(tmp_path: Path) -> None:
    policy, reference, pairs = preference_material()
    trainer = trainer_of(tmp_path, policy, reference)
    loss, _ = their_gradients(trainer, collated(pairs, 100), len(pairs))
    found, file = loss_and_gradients(loss, trainer.model), Path(__file__).parents[2] / "golden" / "trl.json"
    if "RECORD_GOLDEN" in os.environ:
        file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    assert found == pytest.approx(json.loads(file.read_text("utf-8")), rel=1e-5)
