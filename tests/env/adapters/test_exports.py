"""Exports open in TRL and verl: their data sets, their tokens, their masks, their losses."""

import copy
import math
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="make setup-adapters installs it")
pytest.importorskip("verl", reason="make setup-adapters installs it")
pytestmark = [
    pytest.mark.adapters,
    pytest.mark.filterwarnings("default"),  # of other libraries
]

with warnings.catch_warnings():  # importing verl imports ray, wandb and others, which warn
    warnings.simplefilter("ignore")
    import torch
    from datasets import load_dataset
    from omegaconf import OmegaConf
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
    from trl.chat_template_utils import qwen3_instruct_2507_chat_template
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
    from verl.utils.dataset.rl_dataset import RLHFDataset

from env.adapters.session import Session  # noqa: E402
from env.adapters.verl import tool_selection  # noqa: E402
from pipeline.exports.selection import Selection  # noqa: E402
from pipeline.exports.trl import write_trl  # noqa: E402
from pipeline.exports.verl import write_verl  # noqa: E402
from pipeline.types import Rollout  # noqa: E402
from tests.env.adapters.played import STYLE  # noqa: E402
from tests.exports import Made, make_run  # noqa: E402
from tests.test_export_docs import EXAMPLES, is_of_adapters  # noqa: E402

OPTIONS: dict[str, Any] = {
    "use_cpu": True, "bf16": False, "report_to": [], "gradient_checkpointing": False, "max_length": None,
    "per_device_train_batch_size": 4, "shuffle_dataset": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def folder(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_trl(Selection(made.run_dir), folder)
    return folder


def load(folder: Path, name: str, tmp_path: Path) -> Any:
    return load_dataset(str(folder), name, split="train", cache_dir=str(tmp_path / "cache"))


def model_of(made: Made, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    tokens = made.tokenizer
    config = Qwen3Config(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=8192,
        initializer_range=0.2, pad_token_id=tokens.pad_token_id, eos_token_id=tokens.eos_token_id,
        bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def logprobs(model: Any, rollout: Rollout) -> torch.Tensor:
    """Returns log-probabilities of the whole response, the first token's prompt before it."""
    ids = torch.tensor([[*rollout.prompt_token_ids, *rollout.response_token_ids]])
    with torch.no_grad():
        every = torch.log_softmax(model(ids).logits[0, :-1].float(), -1)
    found = every.gather(1, ids[0, 1:, None])[:, 0]
    return found[len(rollout.prompt_token_ids) - 1 :]


def sft_trainer(made: Made, data: Any, out: Path, tokenizer: Any = None, **options: Any) -> Any:
    return SFTTrainer(
        model=model_of(made), processing_class=tokenizer or made.tokenizer, train_dataset=data,
        args=SFTConfig(output_dir=str(out), **OPTIONS, **options),
    )  # fmt: skip


def with_qwen_s_template(made: Made) -> Any:
    """Returns the run's tokenizer with the template of Qwen3-Instruct-2507, as TRL has it."""
    tokenizer = copy.deepcopy(made.tokenizer)
    tokenizer.chat_template = qwen3_instruct_2507_chat_template
    return tokenizer


def test_trl_s_sft_trainer_takes_tokens_whose_loss_is_that_of_the_sampled_ones(
    made: Made, folder: Path, tmp_path: Path
) -> None:
    trainer = sft_trainer(made, load(folder, "tokens", tmp_path), tmp_path / "out")
    graded = [r for r in made.rollouts if r.reward is not None]
    assert len(trainer.train_dataset) == len(graded)
    batch = next(iter(trainer.get_train_dataloader()))
    sampled = {
        tuple(i for i, m in zip(r.response_token_ids, r.loss_mask, strict=True) if m): r for r in graded
    }
    of_batch = [sampled[tuple(i for i in row.tolist() if i != -100)] for row in batch["labels"]]
    loss = float(trainer.compute_loss(trainer.model.eval(), dict(batch)).detach())
    parts = [logprobs(trainer.model, r)[torch.tensor(r.loss_mask).bool()] for r in of_batch]
    assert loss == pytest.approx(-float(torch.cat(parts).mean()), rel=1e-5)


def test_trl_s_tokens_of_prompt_and_completion_are_the_stored_ones(
    made: Made, folder: Path, tmp_path: Path
) -> None:
    """Its labels cover the whole completion, replies of tools and the template's last newline included."""
    trainer = sft_trainer(made, load(folder, "sft", tmp_path), tmp_path / "out")
    assert len(trainer.train_dataset) == len(made.bare)
    for row, r in zip(trainer.train_dataset, made.bare, strict=True):
        prompt, response = list(r.prompt_token_ids), list(r.response_token_ids)
        assert row["input_ids"][:-1] == prompt + response
        assert row["labels"][:-1] == [-100] * len(prompt) + response


def test_trl_masks_replies_of_tools_by_a_template_that_marks_what_the_policy_says(
    made: Made, folder: Path, tmp_path: Path
) -> None:
    data = load(folder, "sft", tmp_path)
    trainer = sft_trainer(made, data, tmp_path / "out", with_qwen_s_template(made), assistant_only_loss=True)
    for row, r in zip(trainer.train_dataset, made.bare, strict=True):
        assert row["input_ids"][:-1] == [*r.prompt_token_ids, *r.response_token_ids]
        labels = row["labels"][len(r.prompt_token_ids) : -1]
        newline = row["input_ids"][-1]  # after a message, which TRL's mark covers
        kept = zip(r.response_token_ids, r.loss_mask, labels, strict=True)
        assert all((label != -100) == bool(bit) or label == newline for _, bit, label in kept)


@pytest.mark.parametrize("name", ["siblings", "preferences"])
def test_trl_s_dpo_trainer_takes_pairs_whose_loss_is_that_of_the_stored_tokens(
    made: Made, folder: Path, tmp_path: Path, name: str
) -> None:
    """A template ends a dialogue with a newline, which a text has not."""
    data = load(folder, name, tmp_path)
    if name == "siblings":
        stored = [(row["chosen_id"], row["rejected_id"]) for row in data]
    else:
        stored = [(made.pairs[0].chosen.answer_id, made.pairs[0].rejected.answer_id)]
    assert len(stored) == len(data)
    by_id, ends = {r.rollout_id: r for r in made.rollouts}, int(name == "siblings")
    policy, reference = model_of(made), model_of(made, seed=1)
    trainer = DPOTrainer(
        model=policy, ref_model=reference, processing_class=made.tokenizer, train_dataset=data,
        args=DPOConfig(output_dir=str(tmp_path / "out"), beta=0.1, **{
            name: value for name, value in OPTIONS.items() if name != "shuffle_dataset"
        }),
    )  # fmt: skip
    rows, losses = list(trainer.train_dataset)[:3], []
    for row, ids in zip(rows, stored, strict=False):
        ratio = 0.0
        for side, sign, rollout_id in zip(("chosen", "rejected"), (1, -1), ids, strict=True):
            r, answer = by_id[rollout_id], row[f"{side}_ids"]
            assert row["prompt_ids"] == list(r.prompt_token_ids)
            assert answer[: len(answer) - ends] == list(r.response_token_ids)
            whole = replace(r, response_token_ids=tuple(answer))
            ratio += sign * float(logprobs(policy, whole).sum() - logprobs(reference, whole).sum())
        losses.append(math.log1p(math.exp(-0.1 * ratio)))
    found = float(trainer.compute_loss(trainer.model.eval(), trainer.data_collator(rows)).detach())
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-4)


@pytest.fixture(scope="module")
def of_verl(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of_verl")
    write_verl(Selection(made.run_dir), folder)
    return folder


def test_verl_s_rl_data_set_reads_the_tasks(made: Made, of_verl: Path, tmp_path: Path) -> None:
    config = OmegaConf.create({"cache_dir": str(tmp_path), "max_prompt_length": 4096})
    for split in ("train", "val"):
        rows = RLHFDataset(str(of_verl / f"{split}.parquet"), made.tokenizer, config)
        tasks = [task for task in made.tasks if task.split == split]
        assert len(rows) == len(tasks)
        for row, task in zip((rows[i] for i in range(len(rows))), tasks, strict=True):
            assert row["raw_prompt"] == list(task.prompt)
            assert row["reward_model"] == {"style": task.style, "ground_truth": task.ground_truth}
            assert (row["data_source"], row["ability"]) == (task.data_source, task.ability)
            assert row["index"] == task.index
            # What its agent loop plays the task by: env/adapters/verl.py.
            assert "search_company" in tool_selection(row, "phone")


def test_verl_s_sft_data_set_reads_dialogues_in_qwen_s_own_template(made: Made, of_verl: Path) -> None:
    """Message by message, so a template may close nothing late, as ours closes replies of tools."""
    tokenizer = with_qwen_s_template(made)
    config = OmegaConf.create({"max_length": 8192, "pad_mode": "no_padding"})
    rows = MultiTurnSFTDataset(str(of_verl / "sft.parquet"), tokenizer, config)
    assert len(rows) == len(made.bare)
    for i, r in enumerate(made.bare):
        assert rows[i]["input_ids"].tolist()[:-1] == [*r.prompt_token_ids, *r.response_token_ids]
        said = rows[i]["input_ids"][rows[i]["loss_mask"].bool()].tolist()
        mask = zip(r.response_token_ids, r.loss_mask, strict=True)
        sampled = tokenizer.decode([token for token, bit in mask if bit])
        assert tokenizer.decode(said).replace(f"{STYLE.stop_token}\n", STYLE.stop_token) == sampled


def test_the_examples_of_the_page_work(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    shutil.copytree(made.run_dir, tmp_path / "data" / "demo")
    for name, write in (("trl", write_trl), ("verl", write_verl)):
        (tmp_path / "out" / name).mkdir(parents=True)
        write(Selection(Path("data/demo")), tmp_path / "out" / name)
    model_of(made).save_pretrained("data/demo/sft/policy")
    for example in filter(is_of_adapters, EXAMPLES):
        exec(compile(example, "docs/export.md", "exec"), {})
    config = OmegaConf.create({"cache_dir": str(tmp_path / "of verl"), "filter_overlong_prompts": False})
    row = RLHFDataset("out/verl/train_tools.parquet", made.tokenizer, config)[0]
    session = Session("phone")
    session.start(row["tools_kwargs"]["search_company"]["create_kwargs"]["row"])
    assert session.infra_error is None
    assert "search_company" in row["extra_info"]["tool_selection"]
