r"""What an answer is made of: numbers alone, lists, sets, points, intervals, matrices, equations.

Brackets are balanced by counting, so the time is linear; a text that is none of these is one item.
"""

import re
from typing import Literal, NamedTuple

Kind = Literal["one", "some", "row", "matrix", "union", "equation"]
MOST_ITEMS = 60
_OPEN, _CLOSE = "([{", ")]}"
UNION = "\u222a"
_SPELLINGS = (
    (re.compile(r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])"), ""),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])"), "°"),
    (re.compile(r"(?<=\d)(?:,\\!|\{,\}|\\,)(?=\d{3})"), ","),
    (re.compile(r"(?<!\\)\\[,;!:> ]|~|\\q?quad"), " "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\leq?(?:slant)?(?![a-zA-Z])"), "≤"),
    (re.compile(r"\\geq?(?:slant)?(?![a-zA-Z])"), "≥"),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"<="), "≤"),
    (re.compile(r">="), "≥"),
    (re.compile(r"\\cup(?![a-zA-Z])"), UNION),
    (re.compile(r"\\infty(?![a-zA-Z])|\binfinity\b"), "∞"),
    (re.compile(r"\\in(?![a-zA-Z])"), "∈"),
    (re.compile(r"\\pm(?![a-zA-Z])"), "±"),
    (re.compile(r"\\(?:emptyset|varnothing)(?![a-zA-Z])"), r"\\{\\}"),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"([_^])\s*\{\s*(\w)\s*\}(?!\d)"), r"\1\2"),
)
_MATRIX = re.compile(r"\\begin\{([pbBv]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_NAMED = re.compile(r"(?:[A-Za-z](?:_\w|\([a-z]\))?|\([a-z](?:\s*,\s*[a-z])+\))\s*[=∈]\s*")
_INEQUALITY = re.compile(r"([^<>≤≥]+)([<>≤≥])([^<>≤≥]+)(?:([<>≤≥])([^<>≤≥]+))?")
_AND = re.compile(r"\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b")
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\bor\b")
_MIRRORED = str.maketrans("<>≤≥", "><≥≤")


class Shape(NamedTuple):
    """An answer's kind, its brackets if order and brackets say something, and its parts or its text."""

    kind: Kind
    parts: tuple["Shape", ...] = ()
    text: str = ""
    brackets: str = ""


def spelt(text: str) -> str:
    """Returns a text in one spelling, without dollar signs around it and a full stop behind it."""
    text = text.strip()
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = " ".join(text.split()).removesuffix(".").strip()
    for opening, closing in (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if len(text) > 2 and text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)].strip()
    return text.replace(r"\$", "$").replace("$$", "$")


def unnamed(text: str) -> str:
    """Returns a text without the name of what it is: `x = 5` is 5, unless more equals signs follow."""
    found = _NAMED.match(text := text.strip())
    return text[found.end() :] if found and text.count("=") <= 1 else text


def shape(text: str) -> Shape:
    """Returns what a text in one spelling is made of. Raises ValueError if it has too many parts."""
    text = text.strip()
    if found := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in found[2].split(r"\\") if row.strip()]
        cells = tuple(Shape("row", _shapes(row)) for row in rows)
        return Shape("matrix", cells, brackets=found[1].strip("pbB"))
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return Shape("some", _shapes(_split(text[2:-2], ",")))
    if text.startswith("{") and _closes(text) == len(text) - 1:
        return shape(text[1:-1])
    if len(parts := _split(text, UNION)) > 1:
        return Shape("union", _shapes(parts))
    if (interval := _interval(text)) is not None:
        return interval
    if len(cases := _OR.split(text)) > 1 and all(_interval(case.strip()) for case in cases):
        return Shape("union", _shapes(cases))
    if (
        text[:1] in ("(", "[")
        and _closes(text) == len(text) - 1
        and len(parts := _split(text[1:-1], ",")) > 1
    ):
        return Shape("row", _shapes(parts), brackets=text[0] + text[-1])
    if len(parts := _listed(text)) > 1:
        return Shape("some", _shapes([unnamed(part) for part in parts]))
    if len(parts := _split(text, "=")) == 2:
        return Shape("equation", _shapes(parts))
    return Shape("one", text=text)


def _shapes(texts: list[str]) -> tuple[Shape, ...]:
    texts = [text for text in texts if text.strip()]
    if len(texts) > MOST_ITEMS:
        raise ValueError(f"{len(texts)} items; at most {MOST_ITEMS} are compared")
    return tuple(shape(text) for text in texts)


def _listed(text: str) -> list[str]:
    if re.fullmatch(r"[-$€£ ]*\d{1,3}(?:,\d{3})+(?:\.\d+)?[^,]*", text):  # thousands
        return [text]
    pieces = [part for piece in _split(text, ",") for part in _AND.split(piece)]
    return [sign for piece in pieces if piece.strip() for sign in _signed(piece)]


def _signed(text: str) -> list[str]:
    """Returns a text with each of the signs that it leaves open."""
    return [text.replace("±", sign) for sign in "+-"] if text.count("±") == 1 else [text]


def _split(text: str, mark: str) -> list[str]:
    """Returns the parts between marks that lie in no bracket."""
    depth, start, parts = 0, 0, []
    for place, char in enumerate(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == mark and depth <= 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def _closes(text: str) -> int:
    """Returns where the first bracket closes, by whichever bracket; -1 if it never does."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if depth == 0:
            return place
    return -1


def _interval(text: str) -> Shape | None:
    """Returns an inequality in one symbol as an interval."""
    found = _INEQUALITY.fullmatch(text)
    if found is None:
        return None
    low, first, middle, second, high = (part and part.strip() for part in found.groups())
    if second is None:
        if len(low) != 1 or not low.isalpha():
            low, first, middle = middle, first.translate(_MIRRORED), low
        if len(low) != 1 or not low.isalpha():
            return None
        ends, brackets = ("-∞", middle), "(" + ("]" if first == "≤" else ")")
        if first in ">≥":
            ends, brackets = (middle, "∞"), ("[" if first == "≥" else "(") + ")"
    else:
        if len(middle) != 1 or not middle.isalpha() or (first in "<≤") != (second in "<≤"):
            return None
        if first in ">≥":
            low, first, second, high = high, second.translate(_MIRRORED), first.translate(_MIRRORED), low
        ends, brackets = (low, high), ("[" if first == "≤" else "(") + ("]" if second == "≤" else ")")
    return Shape("row", tuple(Shape("one", text=end) for end in ends), brackets=brackets)
