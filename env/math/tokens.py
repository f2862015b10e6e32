r"""Mathematical text as tokens with their places: plain (`3 x 4`), LaTeX (`\frac{1}{2}`) or a mixture.

Linear in the text's length, and total: what is no mathematics is a word, an edge or unread.
"""

import re
from dataclasses import dataclass
from typing import Literal

from env.math.words import FUNCTIONS, SILENT

Kind = Literal[
    "number", "op", "open", "close", "symbol", "function", "relation", "comma", "word", "edge", "unread"
]

THOUSANDS = r"\d{1,3}(?:(?:,(?:\\!)?|\{,\}|\\,)\d{3})+(?![\d,])"
NUMBER = rf"(?:{THOUSANDS}|\d+)(?:\.\d+)?|\.\d+"
_GREEK = {"alpha": "\u03b1", "beta": "β", "gamma": "\u03b3", "delta": "δ", "theta": "θ", "lambda": "λ"}
_GREEK |= {"mu": "μ", "rho": "\u03c1", "sigma": "\u03c3", "tau": "τ", "phi": "φ", "omega": "ω"}
_CONSTANTS = {"pi": "pi", "infty": "∞"} | _GREEK
_OPERATORS = {"times": "*", "cdot": "*", "ast": "*", "div": "/", "circ": "°", "degree": "°", "pm": "±"}
_RELATIONS = {
    "approx": "≈",
    "leq": "≤",
    "le": "≤",
    "geq": "≥",
    "ge": "≥",
    "lt": "<",
    "gt": ">",
    "neq": "≠",
    "ne": "≠",
}
_SHORT = {"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom"}
_CHARACTERS = {"\u00d7": "*", "·": "*", "⋅": "*", "÷": "/", "\u2212": "-", "√": "sqrt", "π": "pi"}
_POWERS = {"²": "2", "³": "3"}
_EDGES = ".;:?…"

_PATTERN = re.compile(
    rf"""(?P<clock>\d+(?::\d+)+)
    |(?P<number>{NUMBER})
    |(?P<text>\\(?:text|textbf|mathrm|mbox|textit|operatorname)\s*\{{(?P<inside>[^{{}}]*)\}})
    |(?P<command>\\[a-zA-Z]+)
    |(?P<brace>\\[{{}}])
    |(?P<display>\\[()\[\]])
    |(?P<percent>\\?%)
    |(?P<silent>\s+|\\[,;!:> ]|\\\$|[$~&])
    |(?P<letters>[^\W\d_]+(?:['\u2019][^\W\d_]+)*)
    |(?P<other>\*\*|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text; `text` is in one spelling, whatever the source's."""

    kind: Kind
    text: str
    start: int
    end: int


def tokens(text: str, *, prose: bool = False) -> list[Token]:
    r"""Returns the tokens of a text, blanks and dollar signs left out.

    In `prose` the letters a, A and I are words unless a digit touches them, an exclamation mark ends a
    sentence, a double asterisk is bold type, and numbers such as 0730, and commas between digits that divide
    no thousands, are not read. `x` multiplies between numbers, in prose also beside brackets if blanks stand
    around it.

    Example:
        >>> [token.text for token in tokens(r"2 x 3 = \frac{12}{2} m")]
        ['2', '*', '3', '=', 'frac', '{', '12', '}', '{', '2', '}', 'm']
    """
    found: list[Token] = []
    for match in _PATTERN.finditer(text):
        group, start = str(match.lastgroup), match.start()
        kind, spelling = _read(group, match, prose)
        if prose and text[start - 1 : start].isdigit():
            if spelling in ("a", "A", "I"):
                kind = "symbol"
            elif spelling == "," and text[start + 1 : start + 2].isdigit():
                kind = "unread"
        if kind == "word" and group == "letters" and not prose and len(spelling) < 4:  # a product: xy, abc
            found += [Token("symbol", char, start + i, start + i + 1) for i, char in enumerate(spelling)]
        elif spelling:
            found.append(Token(kind, spelling, start, match.end()))
    return [_times(found, place, prose) for place in range(len(found))]


def _read(group: str, match: re.Match[str], prose: bool) -> tuple[Kind, str]:
    """Returns a match's kind and spelling; an empty spelling for what says nothing."""
    text = match[0]
    if group == "silent":
        return "edge", ""
    if group == "clock":
        return "unread", text
    if group == "number":
        digits = re.sub(r"[^\d.]", "", text)
        return ("unread" if prose and re.match(r"0\d", digits) else "number"), digits
    if group == "text":
        return "word", match["inside"].strip()
    if group == "command":
        return _command(text[1:])
    if group == "brace":
        return ("open", r"\{") if text == r"\{" else ("close", r"\}")
    if group == "display":
        return "edge", text
    if group == "percent":
        return "op", "%"
    if group == "letters":
        if text in FUNCTIONS:
            return "function", text
        if text in ("pi", "π"):
            return "symbol", "pi"
        is_word = len(text) > 1 or (prose and text in "aAI")
        return ("word" if is_word else "symbol"), text
    return _character(text, prose)


def _command(name: str) -> tuple[Kind, str]:
    name = _SHORT.get(name, name)
    if name in FUNCTIONS:
        return "function", name
    if name in _CONSTANTS:
        return "symbol", _CONSTANTS[name]
    if name in _OPERATORS:
        return "op", _OPERATORS[name]
    if name in _RELATIONS:
        return "relation", _RELATIONS[name]
    if name in ("lbrace", "rbrace"):
        return ("open", r"\{") if name == "lbrace" else ("close", r"\}")
    if name in ("boxed", "fbox", "Rightarrow", "implies", "rightarrow", "to", "therefore"):
        return "edge", name
    return ("edge", "") if name in SILENT else ("unread", name)


def _character(text: str, prose: bool) -> tuple[Kind, str]:
    if text == "**":
        return ("edge", "") if prose else ("op", "^")
    text = _CHARACTERS.get(text, text)
    if text == "sqrt":
        return "function", text
    if text in ("pi", "∞"):
        return "symbol", text
    if text in _POWERS:
        return "op", text
    if text == "!":
        return ("edge", text) if prose else ("op", text)
    for kind, members in (("op", "+-*/^%°±"), ("open", "([{"), ("close", ")]}"), ("relation", "=≈<>≤≥≠")):
        if text in members:
            return kind, text  # type: ignore[return-value]
    if text == ",":
        return "comma", text
    return ("edge" if text in _EDGES else "unread"), text


def _times(found: list[Token], place: int, prose: bool) -> Token:
    """Returns a token, an `x` that multiplies as the sign that does."""
    token = found[place]
    if token.text not in ("x", "X") or not 0 < place < len(found) - 1:
        return token
    before, after = found[place - 1], found[place + 1]
    is_between = before.kind == after.kind == "number"
    if prose and before.end < token.start and token.end < after.start:
        is_between = before.kind in ("number", "close") and after.kind in ("number", "open")
    return Token("op", "*", token.start, token.end) if is_between else token
