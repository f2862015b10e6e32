"""What needs no TRL; `tests/env/adapters/test_exports.py` opens the files with it."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from pipeline.exports.dialogues import opening_in, without_text_of_calls
from tests.exports import Made


@pytest.fixture
def load(export: Any, tmp_path: Path) -> Any:
    folder = export("trl")
    return lambda name: datasets.load_dataset(str(folder), name, cache_dir=str(tmp_path / "cache"))["train"]


def test_prompt_and_completion_in_the_run_s_template_are_the_stored_tokens(load: Any, made: Made) -> None:
    rows = load("sft")
    assert len(rows) == len(made.bare)
    for row, r in zip(rows, made.bare, strict=True):
        assert (row["rollout_id"], row["reward"]) == (r.rollout_id, r.reward)
        tools = json.loads(row["tools"])
        encode = made.tokenizer.apply_chat_template
        prompt = encode(row["prompt"], tools=tools, add_generation_prompt=True, return_dict=False)
        whole = encode(row["prompt"] + row["completion"], tools=tools, return_dict=False)
        assert prompt == list(r.prompt_token_ids)
        assert whole[:-1] == [*r.prompt_token_ids, *r.response_token_ids]  # and the template's last newline
        assert {message["role"] for message in row["completion"]} <= {"assistant", "tool"}


def test_tokens_and_labels_are_the_stored_ones_of_all_graded_rollouts(load: Any, made: Made) -> None:
    rows, graded = load("tokens"), [r for r in made.rollouts if r.reward is not None]
    assert [row["rollout_id"] for row in rows] == [r.rollout_id for r in graded]
    assert sum(row["guided"] for row in rows) == 1
    for row, r in zip(rows, graded, strict=True):
        assert row["input_ids"] == [*r.prompt_token_ids, *r.response_token_ids]
        mask = [0] * len(r.prompt_token_ids) + [*r.loss_mask]
        assert row["labels"] == [t if m else -100 for t, m in zip(row["input_ids"], mask, strict=True)]


def test_siblings_share_a_prompt_and_differ_in_reward(load: Any, made: Made) -> None:
    rows, by_id = load("siblings"), {r.rollout_id: r for r in made.bare}
    pairs = [(row["chosen_id"], row["rejected_id"]) for row in rows]
    assert len(set(pairs)) == len(pairs) > 0
    for row in rows:
        sides = [by_id[row[f"{side}_id"]] for side in ("chosen", "rejected")]
        assert len({(r.group_id, r.attempt, r.prompt_token_ids) for r in sides}) == 1
        assert [row["chosen_reward"], row["rejected_reward"]] == [r.reward for r in sides] == [1.0, 0.0]
        for side, r in zip(("chosen", "rejected"), sides, strict=True):
            text = made.tokenizer.apply_chat_template(
                row["prompt"] + row[side], tools=json.loads(row["tools"]), tokenize=False
            )
            whole = made.tokenizer.decode([*r.prompt_token_ids, *r.response_token_ids])
            assert text.removesuffix("\n") == whole
    mixed = {}
    for r in made.bare:
        mixed.setdefault(r.group_id, []).append(r.reward)
    assert len(pairs) == sum(
        max(rewards.count(1.0), rewards.count(0.0)) for rewards in mixed.values() if len(set(rewards)) == 2
    )


def test_preferences_after_one_prompt_that_end_whole_are_texts(
    capsys: pytest.CaptureFixture[str], load: Any, made: Made
) -> None:
    said = capsys.readouterr().out.partition("preferences.parquet")[2]
    assert said.startswith(": 1 rows\n  left out: 1 cut_off\n  left out: 1 other_prompt\n")
    [row], pair = load("preferences"), made.pairs[0]
    assert (row["prompt"], row["chosen"], row["rejected"]) == (
        *(pair.chosen.prompt, pair.chosen.text, pair.rejected.text),
    )
    assert (row["pair_id"], row["chosen_reward"], row["margin"]) == (pair.pair_id, 1.0, pair.margin)


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\n<tools>\n{}\n</tools>",  # said by somebody, not by the system
        "<|im_start|>system\n<tools>\nno JSON\n</tools>",
        "<|im_start|>system\n<tools>\n{}",
        "U: x",
        "",
    ],
)
def test_what_lists_no_tools_opens_without_tools(text: str) -> None:
    assert opening_in(text) is None


def test_thoughts_stay_and_a_call_in_a_thought_is_none() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    thought, text = "<think>\n<tool_call> or not\n</think>\n\n", '<tool_call>\n{"name": "f"}\n</tool_call>'
    message = {"role": "assistant", "content": thought + text, "tool_calls": [call]}
    assert without_text_of_calls(message) == {**message, "content": thought.removesuffix("\n")}
    unread = {"role": "assistant", "content": text}
    assert without_text_of_calls(unread) == unread
