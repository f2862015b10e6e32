r"""Whether a text tells an answer: any number in it that equals gold, however it is written."""

import re
from fractions import Fraction

from env.math.quantities import quantity
from env.math.shapes import spelt
from pipeline.types import Task

_NUMBER = re.compile(
    r"""[-\u2212]?\s?\d*\s*\\[dt]?frac\s*(?:\{[^{}]*\}|\d)\s*(?:\{[^{}]*\}|\d)
      | [-\u2212]?\d[\d,]*(?:\.\d+)?(?:\s+\d+)?\s*/\s*\d+
      | [-\u2212]?(?:\d[\d,]*)?(?:\.\d+|\d)
        (?:\s*(?:\\times|\\cdot|[*\u00d7·])\s*10\s*\^\s*\{?-?\d+\}?)?(?:\s*\\?%)?""",
    re.VERBOSE,
)
_PLACE = re.compile(r"\b(?:steps?|lines?|attempts?|parts?|equations?|no\.)\s*\#?\s*$", re.IGNORECASE)
"""Before a number that says which one, not how many."""
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {
    **{word: n for n, word in enumerate(f"{_SMALL} seventeen eighteen nineteen".split())},
    **{word: 10 * n for n, word in enumerate(_TENS.split(), 2)},
}
_IN_WORDS = re.compile(rf"\b(?:({_TENS.replace(' ', '|')})[- ])?({'|'.join(_WORDS)})\b", re.IGNORECASE)


def tells_answer(task: Task, text: str) -> bool:
    r"""Returns whether a text holds a number that equals the task's answer, or the answer as it is written.

    The numbers of steps and lines are none, and those of the task count as any other: whoever says one of
    them that is the answer tells it.

    Example:
        >>> task = Task("t", "math", "train", 1, (), "rule", r"\frac{1}{2}", "math", "c", 0)
        >>> [tells_answer(task, text) for text in ("It is 0.50.", "50 %", "Look at line 2.")]
        [True, True, False]
    """
    answer = spelt(task.ground_truth)
    gold = quantity(answer)
    if gold is None:
        return _squeezed(answer) in _squeezed(text)
    text = text.replace("\u2044", "/")
    said = [
        quantity(spelt(found[0].rstrip(",")))
        for found in _NUMBER.finditer(text)
        if not _PLACE.search(text[max(0, found.start() - 20) : found.start()])
    ]
    values = {number.value for number in said if number is not None}
    for tens, last in _IN_WORDS.findall(text.casefold()):
        values.add(Fraction(_WORDS.get(tens, 0) + _WORDS[last]))
    percents = {gold.value * 100} if gold.unit is not None and gold.unit[0] == "share" else set()
    return bool(values & {gold.value, *percents})


def _squeezed(text: str) -> str:
    return "".join(text.split()).casefold()
