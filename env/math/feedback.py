"""Rule feedback on a wrong solution: a pure function of how its lines and its answer were judged."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

from env.math.expressions import Node, value
from env.math.quantities import quantity
from env.math.shapes import spelt
from env.math.steps import LineCheck
from env.math.tokens import tokens
from env.math.worked import spelt as number_text
from pipeline.types import Feedback

Verbosity = Literal["binary", "observed", "corrective"]
MAX_CHARACTERS = 600
MOST_BITS = 100
"""Of a number that is told: some thirty digits."""
_SIZES = tuple(Fraction(size) ** sign for size in (1, 60, 100, 1000, 3600) for sign in (1, -1))

_ANSWERS = {
    "no_answer": "There is no answer {place}.",
    "too_long": "The answer is too long to be read.",
    "unread": "The answer cannot be read.",
    "form": "The answer is no result in the form that is asked for.",
}


def rule_feedback(
    checks: Sequence[LineCheck], why: str, verbosity: Verbosity, gold: str, place: str = "in \\boxed{}"
) -> Feedback:
    """Returns what a solution that was not right teaches.

    `binary` says that it was not solved, `observed` which line is the first false one and why, `corrective`
    also what its false side should be, unless that is the answer: no text gives `gold` away. `place` is where
    the prompt asks for the answer.

    Raises ValueError for an unknown verbosity.
    """
    if verbosity not in get_args(Verbosity):
        raise ValueError(f"verbosity {verbosity!r}; known: {', '.join(get_args(Verbosity))}")
    source = f"rules/{verbosity}"
    if verbosity == "binary":
        return Feedback("Not solved.", source)
    first = next((check for check in checks if check.status == "wrong"), None)
    if first is None:
        doubts = [f"Line {check.number}: {check.message}." for check in checks if check.code == "ungrounded"]
        said = _ANSWERS.get(why, "The answer is wrong, though no line that could be checked is false.")
        said = said.format(place=place)
        return Feedback(" ".join((said, *doubts))[:MAX_CHARACTERS], source)
    text = f"Line {first.number} is the first wrong one: {first.message}."
    if (
        verbosity == "observed"
        or first.right is None
        or first.right in _told_by(gold)
        or _is_long(first.right)
    ):
        return Feedback(text[:MAX_CHARACTERS], source)
    return Feedback(f"{text[:MAX_CHARACTERS]} It is {number_text(first.right)}.", source, privileged=True)


def _is_long(number: Fraction) -> bool:
    """Returns whether nobody would write a number out."""
    return max(number.numerator.bit_length(), number.denominator.bit_length()) > MOST_BITS


def _told_by(gold: str) -> set[Fraction]:
    """Returns the numbers that would give an answer away: its own, and its value in other units."""
    text = spelt(gold)
    numbers = {value(Node("number", token.text)) for token in tokens(text) if token.kind == "number"}
    if (found := quantity(text)) is not None:
        numbers |= {found.value, -found.value}
    return {number * size for number in numbers for size in _SIZES}
