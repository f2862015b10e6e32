"""Where a line claims equalities: mathematics between signs of equality, and what stands around it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from env.math.tokens import Token
from env.math.words import DERIVING, LABELS, OPERATING, WHOLE

MATHEMATICS = ("number", "op", "open", "close", "symbol", "function")
EQUAL = ("=", "≈")
_ENDS = ("edge", "comma")


class Side(NamedTuple):
    """A run of mathematics, with what ends it on the left and on the right."""

    tokens: Sequence[Token]
    before: Token | None
    after: Token | None


class Chain(NamedTuple):
    """Sides with signs of equality between them: `3x = 28 - 4 = 24`."""

    sides: Sequence[Side]
    words: Sequence[str]  # the last two before the chain, in small letters
    is_derived: bool  # whether the line has no word but those of derivations

    @property
    def is_apart(self) -> bool:
        """Whether the chain is all that a line says, which only derives: no word or unread sign touches it.

        `n = 1: ...` and `x = 1, y = 5` may be one case of several.
        """
        before, after = self.sides[0].before, self.sides[-1].after
        begins = before is None or before.kind in _ENDS
        return self.is_derived and begins and (after is None or (after.kind == "edge" and after.text != ":"))

    @property
    def start(self) -> int:
        """Its first character."""
        return self.sides[0].tokens[0].start

    @property
    def end(self) -> int:
        """One past its last character."""
        return self.sides[-1].tokens[-1].end

    def may_go_on(self, place: int) -> bool:
        """Returns whether more may belong to side `place` or the one after it, by what stands around them."""
        left, right = self.sides[place : place + 2]
        if place == 0 and left.before is not None and self._may_begin_earlier(left, left.before):
            return True
        after = right.after
        return after is not None and (
            after.kind == "unread" or (after.kind == "relation" and after.text not in EQUAL)
        )

    def _may_begin_earlier(self, side: Side, before: Token) -> bool:
        if before.kind != "word":
            return before.kind == "unread" or (before.kind == "relation" and before.text not in EQUAL)
        if side.tokens[0].text in "+-" or self.words[-1] in LABELS or not self.words[-1].isascii():
            return True
        return self.words[-1] in OPERATING and not (self.words[-1] == "of" and self.words[0] in WHOLE)


def chains(found: Sequence[Token]) -> Iterator[Chain]:
    """Yields the chains of a line that have at least two sides."""
    runs = list(_runs(found))
    words = [(token.start, token.text.lower()) for token in found if token.kind == "word"]
    is_derived = all(word in DERIVING for _, word in words)
    place = seen = 0
    while place < len(runs):
        first = place
        while (end := runs[place].after) is not None and end.text in EQUAL and runs[place].tokens:
            place += 1
        sides = [run for run in runs[first : place + 1] if run.tokens]
        if len(sides) > 1:
            while seen < len(words) and words[seen][0] < sides[0].tokens[0].start:
                seen += 1
            yield Chain(sides, [word for _, word in words[max(0, seen - 2) : seen]], is_derived)
        place += 1


def _runs(found: Sequence[Token]) -> Iterator[Side]:
    start = 0
    for place in range(len(found) + 1):
        after = found[place] if place < len(found) else None
        if after is None or after.kind not in MATHEMATICS:
            yield Side(found[start:place], _before(found, start), after)
            start = place + 1


def _before(found: Sequence[Token], start: int) -> Token | None:
    """Returns what stands before a run; as unread, if it is `. 84` behind a sign or the 400 of `14, 400`."""
    if start < 2 or found[start - 1].kind not in _ENDS:
        return found[start - 1] if start else None
    before, earlier = found[start - 1], found[start - 2]
    is_thousand = before.kind == "comma" and start < len(found) and len(found[start].text) == 3
    if (earlier.kind == "op" and earlier.text in "+-*/^") or (earlier.kind == "number" and is_thousand):
        return Token("unread", before.text, before.start, before.end)
    return before
