r"""Whether a text tells an answer: any number in it that equals gold, however it is written."""

import re

from env.feedback.leak_guard import in_digits
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
_PLACE = re.compile(r"\b(?:steps?|lines?|attempts?|parts?)\s*\#?\s*$", re.IGNORECASE)
"""Before a number that says which one, not how many."""
MOST_PLACE = 20
"""A higher number is no number of a step."""


def tells_answer(task: Task, text: str) -> bool:
    r"""Returns whether a text holds a number that equals the task's answer, whatever its sign, or its words.

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
    text = " ; ".join(in_digits(spelt(text.replace("\u2044", "/"))))
    is_share = gold.unit is not None and gold.unit[0] == "share"
    told = {abs(gold.value), abs(gold.value) * (100 if is_share else 1)}
    for found in _NUMBER.finditer(text):
        said = quantity(found[0].rstrip(","))
        if said is None or abs(said.value) not in told:
            continue
        is_place = _PLACE.search(text[max(0, found.start() - 20) : found.start()])
        if not is_place or said.value > MOST_PLACE:
            return True
    return False


def _squeezed(text: str) -> str:
    return "".join(text.split()).casefold()
