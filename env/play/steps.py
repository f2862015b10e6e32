"""The steps of an episode: spans of its messages, and what the verifier says of each."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from env.splitters import token_spans
from pipeline.types import Step, StepVerdict

_WEIGHT = {"wrong": 0, "ok": 1, "unknown": 2}
"""Which of several verdicts is the step's: it is wrong if anything in it is, ok if anything was checked."""


@dataclass(frozen=True, slots=True)
class Span:
    """A step before it is graded; tokens are offsets into the response, characters into the message."""

    message_index: int
    token_start: int
    token_end: int
    char_start: int
    text: str


def message_spans(
    text: str,
    borders: Sequence[int],
    char_starts: Sequence[int],
    *,
    message_index: int,
    response_start: int,
    begun: int,
) -> list[Span]:
    """Returns the steps of a whole message that were sampled here, in order; none if the first began before.

    `borders` and `char_starts` are those of `token_spans`. The message's first `begun` tokens lie in the
    prompt, and a step begins right after them, at `response_start`.
    """
    tokens = [span for span in token_spans(borders, char_starts) if span[0] >= begun]
    if not tokens or tokens[0][0] != begun:
        return []
    chars = [char_starts[first] for first, _ in tokens]
    return [
        Span(message_index, response_start + first - begun, response_start + end - begun, at, text[at:to])
        for (first, end), at, to in zip(tokens, chars, [*chars[1:], len(text)], strict=True)
    ]


def graded_steps(spans: Sequence[Span], verdicts: Iterable[StepVerdict], *, first: int) -> tuple[Step, ...]:
    """Returns the steps, counted from `first`; a verdict is of the step that holds its first character.

    Verdicts on messages or characters before the first span are passed over.
    """
    of_message: dict[int, list[StepVerdict]] = defaultdict(list)
    for verdict in verdicts:
        of_message[verdict.message_index].append(verdict)
    steps = []
    for place, span in enumerate(spans):
        following = [s for s in spans[place + 1 : place + 2] if s.message_index == span.message_index]
        end = following[0].char_start if following else math.inf
        own = [v for v in of_message[span.message_index] if span.char_start <= v.char_start < end]
        word = min(own, key=lambda v: _WEIGHT[v.status], default=StepVerdict(span.message_index, "unknown"))
        steps.append(
            Step(
                step_index=first + place,
                message_index=span.message_index,
                token_start=span.token_start,
                token_end=span.token_end,
                text=span.text,
                verifier_status=word.status,
                verifier_code=word.code,
                verifier_message=word.message,
            )
        )
    return tuple(steps)
