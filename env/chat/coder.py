"""Text to token ids and back."""

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

from env.chat.style import ChatStyle
from env.protocol import Tools
from pipeline.types import Message


class Coder:
    """Text to ids and back; equal texts, such as the prompts of a group, are encoded once."""

    def __init__(self, tokenizer: Any, stop_token: str) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, tuple[int, ...]] = {}
        self.stop_id: int = tokenizer.convert_tokens_to_ids(stop_token)
        if self.stop_id == tokenizer.unk_token_id:  # what any unknown one becomes; else None
            raise ValueError(f"the tokenizer has no token {stop_token!r}, which ends the style's messages")

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the text's ids, without special tokens of the tokenizer's own."""
        ids = self._known.get(text)
        if ids is None:
            ids = self._known[text] = tuple(self._tokenizer.encode(text, add_special_tokens=False))
        return ids

    def prompt(
        self,
        style: ChatStyle,
        messages: Sequence[Message],
        tools: Tools,
        previous_attempts: Sequence[str] = (),
    ) -> tuple[int, ...]:
        """Returns the ids before an episode's first sampled token; without earlier attempts it is bare."""
        return self.encode(style.render_prompt(messages, previous_attempts, tools))

    def char_starts(self, token_ids: Sequence[int]) -> list[int]:
        """Returns how many whole characters of a message have been said before each of its tokens.

        Raises:
            ValueError: the tokenizer reads a message's tokens otherwise one by one than all at once.
        """
        stream, backend = DecodeStream(skip_special_tokens=False), self._tokenizer.backend_tokenizer
        starts, said = [], ""
        for token_id in token_ids:
            starts.append(len(said))
            if token_id != self.stop_id:
                said += stream.step(backend, token_id) or ""
        if not self.message_text(token_ids).startswith(said):
            raise ValueError(
                f"the tokenizer reads {said[:80]!r} otherwise token by token than all at once, so no steps "
                "can be found in it. Next: the splitter `message`, or a byte-level tokenizer"
            )
        return starts

    def message_text(self, token_ids: Sequence[int]) -> str:
        """Returns a sampled message as text, without the stop token that ends it."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] == self.stop_id else token_ids
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False)) if ids else ""
