r"""Whether a text tells an answer: any number in it that equals gold, however it is written, or its words."""

import re
from collections.abc import Iterator
from decimal import Decimal

from env.feedback.leak_guard import holds_value, in_digits
from env.math.quantities import WORDS, quantity
from env.math.shapes import Shape, shape, spelt
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
_SHARE = re.compile(
    rf"\b(\d+|an?|is|be|get|gives|equals)[\s-]+({'|'.join(_PARTS)})\b(?!\s+(?:lines?|steps?|attempts?|parts?|times?)\b)",
    re.IGNORECASE,
)
_SCALES = {"dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALED = re.compile(
    rf"(?<![\d.])(?:(\d{{1,9}}(?:\.\d{{1,9}})?)|\ban?)\s+({'|'.join(_SCALES)})\b"
    r"|(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)e([+-]?\d{1,2})(?![\w.])",
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
    try:
        parts = list(_leaves(shape(answer)))
    except ValueError:  # too many parts to be told by the way
        parts = [answer]
    return all(_tells(part, text) for part in parts) or (
        len(parts) > 1 and _squeezed(answer) in _squeezed(text)
    )


def _leaves(whole: Shape) -> Iterator[str]:
    """Yields what an answer is made of: a list's numbers, a point's coordinates, an equation's sides."""
    if whole.kind == "one":
        yield whole.text
    for part in whole.parts:
        yield from _leaves(part)


def _tells(answer: str, text: str) -> bool:
    if (gold := quantity(answer)) is None:
        plain = WORDS.sub(r" \1 ", answer).strip(" ()")
        if len(plain) == 1 and plain.isalpha():  # a choice, which is no article or pronoun
            return re.search(rf"(?<!\w){plain}(?!\w){'(?! [a-z])' * (plain in 'AI')}", text) is not None
        is_words = not re.search(r"[\d\\^_=+*/<>-]", plain)
        return holds_value(text, [plain]) if is_words else _squeezed(answer) in _squeezed(text)
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
        >>> spoken("1 half, 3 quarters, 3 over 4, 2 and a half, half a million, 2e6, 1 500, a dozen")
        '1/2, 3/4, 3/4, 2.5, 500000, 2000000, 1500, 12'
        >>> spoken("In the third line half of the steps fail.")
        'In the third line half of the steps fail.'
    """
    text = re.sub(r"(?<![\d.])(\d{1,3})((?: \d{3})+)(?![\d.])", lambda m: m[1] + m[2].replace(" ", ""), text)
    text = re.sub(r"(\d)\s+over\s+(\d)", r"\1/\2", text)
    text = re.sub(r"\b(\d+) and (?:a|1)[\s-]half\b", r"\1.5", text, flags=re.IGNORECASE)
    text = re.sub(rf"\bhalf an? ({'|'.join(_SCALES)})\b", r"0.5 \1", text, flags=re.IGNORECASE)
    text = _SHARE.sub(lambda m: f"{m[1] if m[1].isdigit() else 1}/{_PARTS[m[2].casefold()]}", text)
    return _SCALED.sub(_unscaled, text)


def _unscaled(found: re.Match[str]) -> str:
    if found[2]:
        number = Decimal(found[1] or 1) * _SCALES[found[2].casefold()]
    else:
        number = Decimal(f"{found[3]}e{found[4]}")
    return f"{number.normalize():f}"


def _squeezed(text: str) -> str:
    """Returns a formula without what only looks: blanks, brackets, signs of multiplication, of a fraction."""
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text.casefold())
    text = text.replace("\u221a", "sqrt").replace("\u03c0", "pi").replace("cdot", "")
    return re.sub(r"[\s\\{}()*\u00b7\u00d7]", "", text)
