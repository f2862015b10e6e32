"""What sft learns of Qwen3's own tool calls, with and without thinking."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken

from env.chat.full import FullStyle
from env.chat.neutral import added_tokens
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import TOOLS
from env.phone.offer import PHONE
from env.phone.tasks import practice_tasks
from env.play.demonstrations import demonstrate
from pipeline.models.tiny import train_tokenizer
from stages.wiring.sft_data import encode

BLOCK = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    """Has tags as Qwen3's has: added tokens, which are not flagged special."""
    style = FullStyle(TOOLS)
    texts, folder = [json.dumps(list(TOOLS))] * 8, tmp_path_factory.mktemp("qwen")
    made = train_tokenizer(texts, 600, Path(folder), style.template, style.special_tokens)
    made.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in ("<think>", "</think>")])
    return made


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("level", [1, 3])
def test_sft_learns_what_the_demonstrator_says_and_nothing_that_its_prompts_write(tokenizer, thinking, level):
    style = PHONE.style("full", tokenizer, thinking=thinking)
    assert style.opening == ("" if thinking else BLOCK)
    [task] = practice_tasks(1, level_shares={level: 1.0}, seed=3, held_out=set())
    shown = demonstrate(
        PHONE.demonstrators,
        PhoneEnv,
        task,
        style=style,
        shares={"adaptive": 1.0},
        guided_share=0.0,
        noise=0.0,
        seed=5,
        follows_feedback=0.0,
        thoughts=False,
    )
    ids, weights = encode(tokenizer, shown, context_weight=0.0)
    text = "".join(piece for piece, _ in shown.pieces)
    said = [piece for piece, is_own in shown.pieces if is_own]
    assert tokenizer.decode(ids) == text
    # Row by row as an engine prompts it: ids of each prompt begin with those of the one before.
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    learnt = [token for token, weight in zip(ids, weights, strict=True) if weight]
    assert set(weights) == {0.0, 1.0}
    assert tokenizer.decode(learnt) == "".join(said)
    tags = set(tokenizer.convert_tokens_to_ids(["<think>", "</think>"]))
    assert tags <= set(added_tokens_of(tokenizer))
    assert tags.isdisjoint(learnt)
    assert sum(token in tags for token in ids) == (0 if thinking else 2 * len(said))
    # What each message is cued with: the empty block where the policy may not think.
    cues = [piece for piece, is_own in shown.pieces if not is_own]
    assert all(cue.endswith(f"<|im_start|>assistant\n{style.opening}") for cue in cues)
    assert all(style.parse(message).status in ("ok", "none") for message in said)


def added_tokens_of(tokenizer):
    return [tokenizer.convert_tokens_to_ids(token) for token in added_tokens(tokenizer)]
