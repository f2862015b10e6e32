"""The steps of an episode: spans of its messages, and what the verifier says of each."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from env.splitters import token_spans
from pipeline.types import Step, StepVerdict

_ORDER = ("wrong", "ok", "unknown")
"""Which of several verdicts is the step's: it is wrong if anything in it is, ok if anything was checked."""


def message_steps(
    text: str,
    borders: Sequence[int],
    char_starts: Sequence[int],
    *,
    message_index: int,
    first_index: int,  # of the first of these steps
    response_start: int,
    begun: int,
) -> list[tuple[int, Step]]:
    """Returns the ungraded steps of a whole message that were sampled here, each with its first character.

    Blanks before a step count as its own: the token that ends a line may hold the indentation of the next.
    `borders` and `char_starts` are those of `token_spans`. The message's first `begun` tokens lie in the
    prompt, and a step begins right after them, at `response_start`; if none does, there are no steps.
    """
    tokens = [span for span in token_spans(borders, char_starts) if span[0] >= begun]
    if not tokens or tokens[0][0] != begun:
        return []
    chars = [char_starts[first] for first, _ in tokens] + [len(text)]
    shift = response_start - begun
    steps = [
        Step(first_index + place, message_index, shift + first, shift + end, text[at:to])
        for place, ((first, end), (at, to)) in enumerate(zip(tokens, pairwise(chars), strict=True))
    ]
    return [(len(text[:at].rstrip()), step) for at, step in zip(chars[:-1], steps, strict=True)]


def graded_steps(steps: Sequence[tuple[int, Step]], verdicts: Iterable[StepVerdict]) -> tuple[Step, ...]:
    """Returns the steps with the verdicts on them; a verdict is of the step that holds its first character.

    Verdicts on messages or characters before the first step are passed over.
    """
    starts = [(step.message_index, char_start) for char_start, step in steps]
    words: dict[int, StepVerdict] = {}
    for verdict in verdicts:
        place = bisect_right(starts, (verdict.message_index, verdict.char_start)) - 1
        if place >= 0 and starts[place][0] == verdict.message_index:
            words[place] = min(words.get(place, verdict), verdict, key=lambda word: _ORDER.index(word.status))
    graded = [step for _, step in steps]
    for place, word in words.items():
        graded[place] = replace(
            graded[place],
            verifier_status=word.status,
            verifier_code=word.code,
            verifier_message=word.message,
        )
    return tuple(graded)
