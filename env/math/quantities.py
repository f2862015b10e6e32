r"""Numbers as people write answers: `-1,234.5`, `\frac{3}{4}`, `2 1/2`, `1.2 \times 10^5`, `13\%`, `5 cm`.

A calculation is none of them: what restates the task is not an answer.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from env.math.tokens import NUMBER
from env.math.units import Unit, unit_of

MOST_EXPONENT = 4000
MOST_DIGITS = 4300
WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_FRACTIONS = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_INTEGER = r"(?:\{\s*-?\d+\s*\}|\d)"
_LITERAL = re.compile(
    rf"""(?P<sign>[-+\u2212]?)\s*(?P<currency>[$€£]?)\s*(?P<inner>-?)\s*
    (?:(?P<whole>\d+)?\s*\\frac\s*(?P<top>{_INTEGER})\s*(?P<bottom>{_INTEGER})
      |(?:(?P<mixed>\d+)\s+)?(?P<over>\d+)\s*/\s*(?P<under>\d+)
      |(?P<number>{NUMBER})(?:\.?\\overline\s*\{{(?P<repeats>\d+)\}})?
       (?:\s*(?:\\times|\\cdot|[*\u00d7·])\s*10\s*\^\s*(?P<power>\{{\s*-?\d+\s*\}}|-?\d+)|[eE](?P<e>[-+]?\d+))?)
    (?P<rest>.*)""",
    re.VERBOSE | re.DOTALL,
)


class Quantity(NamedTuple):
    """A value, its unit if it has one, and whether it was written as a ratio of two whole numbers."""

    value: Fraction
    unit: Unit | None
    is_ratio: bool


def quantity(text: str) -> Quantity | None:
    """Returns what a text says if that is one number, perhaps with a unit behind it; else None.

    A percent sign is a unit: 13 % is (13/100, share).
    """
    text = WORDS.sub(r" \1 ", text)
    for mark, ratio in _FRACTIONS.items():
        text = re.sub(rf"(?<=\d)\s*{mark}", f" {ratio}", text).replace(mark, ratio)
    found = _LITERAL.fullmatch(text.strip())
    if found is None or (found["sign"] and found["inner"]):
        return None
    try:
        unit = unit_of(found["rest"])
        if found["currency"]:
            if unit not in (None, own := unit_of(found["currency"])):
                return None
            unit = own
        value = _value(found)
    except (ValueError, ZeroDivisionError):  # no unit, too many digits, a denominator of zero
        return None
    if unit is not None and unit[0] == "share":
        value, unit = value / 100, (unit[0], Fraction(1), 1)
    is_ratio = bool(found["top"] or found["over"]) and not (found["whole"] or found["mixed"])
    return Quantity(
        -value if "-" in (found["sign"].replace("\u2212", "-"), found["inner"]) else value, unit, is_ratio
    )


def _value(found: re.Match[str]) -> Fraction:
    if found["top"]:
        return int(found["whole"] or 0) + Fraction(_integer(found["top"]), _integer(found["bottom"]))
    if found["over"]:
        return int(found["mixed"] or 0) + Fraction(int(found["over"]), int(found["under"]))
    digits = re.sub(r"[^\d.]", "", found["number"])
    whole, _, decimals = digits.partition(".")
    if len(digits) > MOST_DIGITS:
        raise ValueError("too many digits")
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    if repeats := found["repeats"]:
        value += Fraction(int(repeats), (10 ** len(repeats) - 1) * 10 ** len(decimals))
    exponent = _integer(found["power"] or found["e"] or "0")
    if abs(exponent) > MOST_EXPONENT:
        raise ValueError("too large an exponent")
    return value * Fraction(10) ** exponent


def _integer(text: str) -> int:
    return int(text.strip("{} "))


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Returns whether an answer is the gold one: equal in value, in a unit that measures the same.

    A unit may be left out, and stand where gold has none; per cents are fractions unless gold has them too,
    where a bare number counts per cents. A whole number may not be left as a ratio, perhaps the task's own.
    """
    value = answer.value
    if answer.is_ratio and not gold.is_ratio and gold.value.denominator == 1:
        return False
    if gold.unit is None or answer.unit is None:
        if gold.unit is not None and gold.unit[0] == "share":
            value /= 100
        return gold.value == value
    if (gold.unit[0], gold.unit[2]) != (answer.unit[0], answer.unit[2]):
        return False
    return gold.value * gold.unit[1] == value * answer.unit[1]
