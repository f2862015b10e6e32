"""Feedback by the policy itself: the engine that plays the attempts writes it too, greedily."""

from collections.abc import Sequence
from typing import Any

from env.chat.coder import Coder
from env.chat.style import ChatStyle
from env.feedback.protocol import Answer, Ask
from env.feedback.reviewer import PREFIX
from pipeline.engines import Generation, GenerationRequest


class SelfCritique:
    """A `Writer`: the policy that is played.

    Args:
        tokenizer, style: the policy's.
        room: of the engine, for a request with its answer.
        max_tokens: that a text may have.
    """

    source = "self"

    def __init__(self, tokenizer: Any, style: ChatStyle, room: int, max_tokens: int) -> None:
        self._tokenizer, self._style = tokenizer, style
        self._coder = Coder(tokenizer, style.stop_token)
        self._room, self._max_tokens = room, max_tokens
        self._unasked: list[Answer] = []

    def ask(self, asks: Sequence[Ask]) -> list[GenerationRequest]:
        """Returns a request for each ask that fits into the engine; others are `no_room`."""
        requests = []
        for ask in asks:
            text = self._style.render_prompt(ask.messages, tools=())
            prompt = self._tokenizer.encode(text, add_special_tokens=False)
            if len(prompt) + self._max_tokens > self._room:
                self._unasked.append(Answer(ask.rollout_id, "no_room"))
                continue
            name, stop = f"{PREFIX}:{ask.rollout_id}", (self._coder.stop_id,)
            requests.append(GenerationRequest(name, prompt, 0, self._max_tokens, stop, temperature=0.0))
        return requests

    def read(self, generation: Generation) -> Answer:
        """Returns what the policy wrote."""
        text = self._coder.message_text(generation.token_ids)
        return Answer(generation.request_id.partition(":")[2], "ok", text, len(generation.token_ids))

    def collect(self, wait: bool) -> list[Answer]:
        """Returns the answers to what could not be asked; everything else the engine answers."""
        answers, self._unasked = self._unasked, []
        return answers
