"""TRL's GRPOTrainer plays and trains on real episodes: its loop, its parser, our template and tools.

What the policy says is scripted (a model from scratch calls nobody); weights, losses and updates are real.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

# TRL alone does not tell this environment: the tests' own has it beside a vLLM that GRPOTrainer refuses.
pytest.importorskip("verl", reason="make setup-adapters installs it")
pytestmark = [
    pytest.mark.adapters,
    pytest.mark.filterwarnings("default"),  # of other libraries
]

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.chat_template_utils import (  # noqa: E402
    add_response_schema,
    is_chat_template_prefix_preserving,
    qwen3_chat_template,
)

from env.adapters.session import tools_of_row  # noqa: E402
from env.adapters.trl import PhoneTools, tools_class  # noqa: E402
from env.chat.calls import checked, schemas_of  # noqa: E402
from env.phone.episode.tools import TOOLS  # noqa: E402
from env.phone.world.levels import LEVELS  # noqa: E402
from tests.env.adapters.played import (  # noqa: E402
    EASY_ROWS,
    ROWS,
    STYLE,
    TASKS,
    by_session,
    make_tokenizer,
    reply,
)


class Scripted(Qwen3ForCausalLM):
    """A tiny model whose messages are the scripted agent's."""

    speaks: Any = None

    @torch.no_grad()
    def generate(self, input_ids: Any, attention_mask: Any, **options: Any) -> Any:
        said = [
            self.speaks(ids[mask.bool()].tolist())
            for ids, mask in zip(input_ids, attention_mask, strict=True)
        ]
        pad = self.config.pad_token_id
        width = max(map(len, said))
        rows = [torch.tensor(ids + [pad] * (width - len(ids))) for ids in said]
        return torch.cat([input_ids, torch.stack(rows)], dim=1)


def make_model(tokenizer: Any, prompted: list[str]) -> Scripted:
    """Returns a model that plays the scripted agent and keeps the prompts that it is given."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=8192,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = Scripted(config)
    rng = Random(0)

    def speaks(ids: list[int]) -> list[int]:
        prompted.append(tokenizer.decode(ids))
        text = reply(prompted[-1], Random(rng.random()))
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    model.speaks = speaks
    return model


def test_a_grpo_trainer_completes_real_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    tokenizer.chat_template = qwen3_chat_template  # by which TRL knows how to read Qwen3's calls
    tokenizer = add_response_schema(tokenizer)
    prompts = {}
    for name, template in (("stock", qwen3_chat_template), ("ours", STYLE.template)):
        tokenizer.chat_template = template
        prompts[name] = tokenizer.apply_chat_template(
            list(TASKS[0].prompt), tools=list(TOOLS), add_generation_prompt=True, tokenize=False
        )
    assert prompts["ours"] == prompts["stock"] == STYLE.render_prompt(TASKS[0].prompt)
    few = tools_of_row("phone", EASY_ROWS[0])
    hard = next(row for task, row in zip(TASKS, ROWS, strict=True) if task.level == max(LEVELS))
    rows = [{**row, "environment": "few"} for row in EASY_ROWS[:2]] + [{**hard, "environment": "all"}]
    assert is_chat_template_prefix_preserving(tokenizer)

    seen: list[tuple[Any, ...]] = []

    def compare(completions: Any, environments: Any, task_id: Any, **columns: Any) -> list[float]:
        """Plays every completion again without TRL; as a reward of weight 0."""
        row_of = {row["task_id"]: row for row in ROWS}
        for messages, environment, key in zip(completions, environments, task_id, strict=True):
            calls = [
                (call["function"]["name"], call["function"]["arguments"])
                for message in messages
                for call in message.get("tool_calls") or ()
            ]
            actions = [checked(schemas_of(TOOLS), "", [call]) for call in calls]
            texts, reward = by_session(row_of[key], actions)
            heard = [message["content"] for message in messages if message["role"] == "tool"]
            assert heard == texts[: len(heard)]
            assert environment.get_reward() == reward
            seen.append((len(calls), reward))
        return [0.0] * len(completions)

    prompted: list[str] = []
    model = make_model(tokenizer, prompted)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[compare],
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        environment_factory={"few": tools_class("phone", few, "FewTools"), "all": PhoneTools},
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"), per_device_train_batch_size=8, num_generations=8, max_steps=3,
            max_completion_length=3000, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
            logging_steps=1, learning_rate=1e-3, gradient_checkpointing=False, reward_weights=[0.0],
            shuffle_dataset=False,
        ),
    )  # fmt: skip
    trainer.train()
    assert len(seen) == 24
    assert {reward for _, reward in seen} == {0.0, 1.0}
    assert max(calls for calls, _ in seen) >= 3
    for row in rows:
        asked = f"user\n{row['prompt'][0]['content']}{STYLE.stop_token}"
        told = {
            prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
            for prompt in prompted
            if asked in prompt
        }
        [names] = {
            tuple(json.loads(line)["function"]["name"] for line in tools.split("\n")) for tools in told
        }
        assert set(names) == {tool["function"]["name"] for tool in tools_of_row("phone", row)}
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    names = ("FewTools", "FewTools", "PhoneTools")
    logged = [entry[f"rewards/{name}/mean"] for entry, name in zip(steps, names, strict=True)]
    assert sum(logged) / 3 == pytest.approx(sum(reward for _, reward in seen) / 24)
    moved = [name for name, weights in model.state_dict().items() if not torch.equal(weights, before[name])]
    assert moved
