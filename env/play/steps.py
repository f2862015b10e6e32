"""The steps of an episode: spans of its messages, and what the verifier says of each."""

from bisect import bisect_right
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
    words: dict[int, StepVerdict] = {}
    starts = [(span.message_index, span.char_start) for span in spans]
    for verdict in verdicts:
        place = bisect_right(starts, (verdict.message_index, verdict.char_start)) - 1
        if place >= 0 and starts[place][0] == verdict.message_index:
            words[place] = min(words.get(place, verdict), verdict, key=lambda word: _WEIGHT[word.status])
    found = [words.get(place, StepVerdict(span.message_index, "unknown")) for place, span in enumerate(spans)]
    return tuple(
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
        for place, (span, word) in enumerate(zip(spans, found, strict=True))
    )
