r"""Whether a text tells an answer: any number in it that equals gold, however it is written."""

import re
from decimal import Decimal

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
_PARTS = {"half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4}
_SHARE = re.compile(rf"\b(?:(\d+|an?)[\s-]+)?({'|'.join(_PARTS)})\b", re.IGNORECASE)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "e": 1}
_SCALED = re.compile(
    r"(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)(?:\s+(thousand|million|billion)\b|e\+?(\d{1,2})(?![\w.]))",
    re.IGNORECASE,
)
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
    text = f"{text} ; {spoken(text)}"
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


def spoken(text: str) -> str:
    """Returns a text with shares, large numbers and powers of ten as numbers, as people write them.

    Example:
        >>> spoken("1 half, 3 quarters, 3 over 4, 1.5 thousand, 2e6, 1 500 and a dozen")
        '1/2, 3/4, 3/4, 1500, 2000000, 1500 and 12'
    """
    text = re.sub(r"(?<![\d.])(\d{1,3})((?: \d{3})+)(?![\d.])", lambda m: m[1] + m[2].replace(" ", ""), text)
    text = re.sub(r"\b(?:an?\s+)?dozen\b", "12", re.sub(r"(\d)\s+over\s+(\d)", r"\1/\2", text))
    text = _SHARE.sub(lambda m: f"{m[1] if (m[1] or 'a').isdigit() else 1}/{_PARTS[m[2].casefold()]}", text)
    return _SCALED.sub(_unscaled, text)


def _unscaled(found: re.Match[str]) -> str:
    number = Decimal(found[1]) * _SCALES[(found[2] or "e").casefold()] * 10 ** int(found[3] or 0)
    return f"{number.normalize():f}"


def _squeezed(text: str) -> str:
    """Returns a formula without what only looks: blanks, brackets, signs of multiplication."""
    return re.sub(
        r"[\s\\{}()*\u00b7\u00d7]", "", text.casefold().replace("\u221a", "sqrt").replace("cdot", "")
    )
