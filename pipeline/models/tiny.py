"""A tiny Qwen3 from scratch, and a tokenizer from text."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD_TOKEN = "<|endoftext|>"
STOP_TOKEN = "<|im_end|>"

PIECES = r" ?\d{3}-|\d{1,2}| ?[\p{L}_]+| ?[^\s\p{L}_\d]+|\s+"
"""What a token may not cross: dialling prefixes, pairs of digits, words, marks, blanks."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Shape of a tiny Qwen3, in the words of its transformers configuration.

    At width 128 `initializer_range`, the standard deviation of fresh weights, has to be near 1/sqrt(width):
    with the usual 0.02 a two-operand rule is not learnt from scratch.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    initializer_range: float = 0.08

    def config(self, vocab_size: int, **options: Any) -> Any:
        """Returns its transformers configuration, embeddings tied."""
        return Qwen3Config(vocab_size=vocab_size, tie_word_embeddings=True, **asdict(self), **options)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    folder: Path,
    chat_template: str,
    special_tokens: Sequence[str] = (),
) -> Any:
    """Returns a byte-level BPE tokenizer trained on `texts`, and writes it to `folder`.

    Numbers are cut into pairs of digits from the left, so that the same number is always spelt the same
    way; a dialling prefix such as `555-` and a name_with_underscores may become one token. Any text
    encodes without loss; `<|endoftext|>` pads and `<|im_end|>` ends a message. Each of `special_tokens` is
    one token wherever it stands. `vocab_size` counts special tokens and the 256 bytes too.
    """
    backend = Tokenizer(models.BPE())
    bytes_of_pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), bytes_of_pieces]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys([PAD_TOKEN, STOP_TOKEN, *special_tokens])),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        eos_token=STOP_TOKEN,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_tiny_model(shape: TinyShape, tokenizer: Any) -> Any:
    """Returns a freshly initialised Qwen3ForCausalLM, fp32, tied embeddings; seed torch first."""
    config = shape.config(
        len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config).to(torch.float32).eval()
