"""From failed attempts to asks, and from what a model answers to what the next attempt is told."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from env.chat.neutral import added_tokens
from env.feedback.leak_guard import capped, guarded
from env.feedback.protocol import Answer, Ask, Writer
from env.feedback.request import messages_of
from pipeline.engines import Generation, GenerationRequest
from pipeline.types import Rollout, Task

PREFIX = "feedback"
"""Of the id of a request to the player's engine, before the colon: no rollout has that id."""
MAX_KEPT_CHARACTERS = 20_000
"""Of an answer, in the table."""


class Reviewer:
    """Has feedback written on rollouts, and guards it.

    Args:
        writer: who writes.
        gives_away: (task, text) -> whether the text tells its answer or a hidden value.
        tokenizer: the policy's, whose added tokens no text may hold.
        max_tokens: of a text, as the policy reads it.
    """

    def __init__(
        self, writer: Writer, gives_away: Callable[[Task, str], bool], tokenizer: Any, max_tokens: int
    ) -> None:
        self._writer = writer
        self._gives_away = gives_away
        self._tokenizer = tokenizer
        self._added = added_tokens(tokenizer)
        self._max_tokens = max_tokens
        self._asked: dict[str, tuple[Task, Rollout]] = {}

    def ask(self, lessons: Iterable[tuple[Task, Rollout]]) -> list[GenerationRequest]:
        """Begins with feedback on rollouts; returns what the player's engine is to sample."""
        asks = []
        for task, rollout in lessons:
            messages = messages_of(task, rollout)
            request = json.dumps(messages, ensure_ascii=False)
            rollout = replace(rollout, feedback_source=self._writer.source, feedback_request=request)
            self._asked[rollout.rollout_id] = task, rollout
            asks.append(Ask(rollout.rollout_id, messages))
        return self._writer.ask(asks)

    def reviewed(self, generations: Sequence[Generation], *, wait: bool) -> list[Rollout]:
        """Returns rollouts with the feedback that has come since; `generations` are the engine's for it.

        With `wait`, at least one if any is due.
        """
        answers = [self._writer.read(generation) for generation in generations]
        answers += self._writer.collect(wait and not answers)
        return [self._with(answer) for answer in answers]

    def _with(self, answer: Answer) -> Rollout:
        task, rollout = self._asked.pop(answer.rollout_id)
        text, status = "", answer.status
        if status == "ok":
            text, status = guarded(answer.text, lambda said: self._gives_away(task, said), self._added)
        return replace(
            rollout,
            feedback_text=capped(text, self._num_tokens, self._max_tokens),
            feedback_status=status,
            feedback_answer=_storable(answer.text),
            feedback_tokens=answer.num_tokens,
        )

    def _num_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))


def _storable(text: str) -> str:
    """Returns the beginning of a text with what no file can hold, half a character, replaced."""
    return text[:MAX_KEPT_CHARACTERS].encode("utf-8", "replace").decode()
