"""Units of answers: what may stand behind a number, and how much of a common unit each is."""

import re
from fractions import Fraction

from env.math.words import COUNTING, NUMBERS

_SCALES: dict[str, dict[str, str]] = {
    "length": {
        "mm millimeter millimetre": "1/1000",
        "cm centimeter centimetre": "1/100",
        "m meter metre": "1",
        "km kilometer kilometre": "1000",
        "in inch inches": "127/5000",
        "ft foot feet": "381/1250",
        "yd yard": "1143/1250",
        "mi mile": "201168/125",
    },
    "time": {
        "s sec second": "1",
        "min minute": "60",
        "h hr hour": "3600",
        "day": "86400",
        "week": "604800",
    },
    "mass": {"mg milligram": "1/1000", "g gram": "1", "kg kilogram": "1000", "t ton tonne": "1000000"},
    "volume": {"ml milliliter millilitre": "1/1000", "l liter litre": "1"},
    "money": {"¢ cent": "1/100", "$ dollar usd buck": "1"},
    "euro": {"€ euro eur": "1"},
    "pound": {"£ gbp": "1"},
    "angle": {"° degree": "1"},
    "share": {"% percent": "1/100"},
}
_UNITS = {
    name: (kind, Fraction(size))
    for kind, sizes in _SCALES.items()
    for names, size in sizes.items()
    for name in names.split()
}
MOST_WORDS = 3

Unit = tuple[str, Fraction, int]
"""Kind, how many of its common unit, and power: square centimetres are ("length", 1/100, 2)."""


def unit_of(text: str) -> Unit | None:
    """Returns what stands behind a number as a unit, None if nothing does. Raises ValueError if it counts.

    Words of three letters that are in no table are units of their own kind: 3 apples are no pears. They, and
    single letters, need a blank before them: `2xy`, `5m` and `4a-2` are formulas.

    Example:
        >>> unit_of(" square cm")
        ('length', Fraction(1, 10000), 2)
    """
    words = text.replace("{", "").replace("}", "").split()
    if not words:
        return None
    small = [word.lower() for word in words]
    if len(words) > MOST_WORDS or {*small, *map(_singular, small)} & {*COUNTING, *NUMBERS}:
        raise ValueError(f"{text!r} is no unit")
    power = 1
    if small[0] in ("square", "sq", "cubic"):
        power = 3 if words.pop(0).lower() == "cubic" else 2
    name = " ".join(words)
    for mark, meant in (("^2", 2), ("^3", 3), ("²", 2), ("³", 3)):
        if name.endswith(mark):
            name, power = name.removesuffix(mark).strip(), meant
    known = _known(name)
    are_words = all(
        _known(part) or re.fullmatch(r"(?:[^\W\d_]|'){3,}", part) for part in re.split("[ /-]", name)
    )
    is_glued = not text[0].isspace() and (known is None or (len(name) == 1 and name.isalpha()))
    if is_glued or not (known or are_words):
        raise ValueError(f"{text!r} is no unit")
    kind, size = known or (_singular(name.lower()), Fraction(1))
    return kind, size**power, power


def _known(name: str) -> tuple[str, Fraction] | None:
    for spelling in (name, name.lower(), _singular(name.lower())):
        if spelling in _UNITS:
            return _UNITS[spelling]
    return None


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word
