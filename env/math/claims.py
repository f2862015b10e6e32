"""Equalities that a line claims, checked exactly; unknown wherever another reading may hold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product
from typing import NamedTuple

from env.math.chains import Chain, chains
from env.math.expressions import SIDE_BY_SIDE, Node, UnreadError, parse, symbols, value, walk
from env.math.tokens import Token
from pipeline.types import VerifierStatus

_OPENS_NO_SIDE = tuple("*/^%!°")
_UNIT_RATIOS = frozenset((7, 12, 24, 60, 100, 365, 1000, 3600))
"""A result in a sentence that is off by one of these may be in another unit."""
_POINTS = tuple(map(Fraction, ("0", "1", "2", "-3", "7/3", "-5/4", "11", "13/6")))


class Checked(NamedTuple):
    """A claim, its place in the line, and what is known of it."""

    start: int
    end: int
    status: VerifierStatus
    code: str = ""  # of what is not `ok`
    right: Fraction | None = None  # what the false side should be
    numbers: frozenset[Fraction] = frozenset()  # that it computes with
    results: frozenset[Fraction] = frozenset()  # that it writes on its right side


@dataclass
class Known:
    """What the lines so far and the question say: numbers, and the possible values of symbols.

    With a `modulus` two numbers are equal if they leave the same rest.
    """

    modulus: int | None = None
    numbers: set[Fraction] = field(default_factory=set)
    roots: dict[str, tuple[Fraction, ...]] = field(default_factory=dict)

    def add(self, found: Sequence[Token], *, is_given: bool = False) -> None:
        """Takes over what a line's tokens say: numbers, and equations in one symbol.

        A policy's own line gives an equation only in a symbol that no line before and no question has, and
        where nothing touches it: `3x = 2 hours` may be minutes. `x = 2` alone may be one case of several, as
        in "y = 10 when x = 2; find y when x = 3", and says nothing.
        """
        self.numbers |= {
            value(Node("number", token.text))
            for token in found
            if token.kind == "number" and len(token.text) < 30
        }
        for chain in chains(found):
            if (is_given or chain.is_apart) and not _has_call(chain):
                self._solve(chain, is_given)
        if is_given:
            for token in found:
                if token.kind == "symbol":
                    self.roots.setdefault(token.text, ())

    def _solve(self, chain: Chain, is_given: bool) -> None:
        for left, right in pairwise(chain.sides):
            try:
                trees = parse(left.tokens), parse(right.tokens)
                [unknown] = symbols(trees[0]) | symbols(trees[1])
            except ValueError:  # not read, or not in one symbol
                continue
            is_named = "symbol" in (trees[0].op, trees[1].op)
            found = () if is_named else roots(trees, unknown)
            if is_given:  # two equations that no value solves are of two cases: then nothing is known
                self.roots[unknown] = tuple(x for x in self.roots.get(unknown, found) if x in found)
            elif not is_named:
                self.roots.setdefault(unknown, found)


def _has_call(chain: Chain) -> bool:
    """Returns whether a symbol may be a function, as in `f(2) = 5`, which says nothing of f times 2."""
    return any(
        first.kind == "symbol" and then.text == "("
        for side in chain.sides
        for first, then in pairwise(side.tokens)
    )


def checked(chain: Chain, known: Known) -> list[Checked]:
    """Returns the claims of a chain that can be read, in order, each with its verdict."""
    places = range(len(chain.sides) - 1)
    return [claim for place in places if (claim := _check(chain, place, known)) is not None]


def _check(chain: Chain, place: int, known: Known) -> Checked | None:
    left, right = chain.sides[place : place + 2]
    try:
        trees = parse(left.tokens), parse(right.tokens)
    except UnreadError:
        return None
    unknowns = symbols(trees[0]) | symbols(trees[1])
    here = left.tokens[0].start, right.tokens[-1].end
    if unknowns:
        is_clear = chain.is_apart and not _has_call(chain)
        return _check_symbols(trees, unknowns, here, known) if is_clear else None
    if place == 0 and trees[0].op == "number" and (left.before is not None or trees[1].op == "number"):
        return None  # the number of something that a word names: `half of 48 = 24`
    numbers, results = map(_numbers, trees)
    readings = list(_readings(trees))
    if any(_agree(a, b, trees[1], known.modulus) for a, b in readings):
        return Checked(*here, "ok", numbers=numbers, results=results)
    is_near = left.after is not None and left.after.text == "≈"
    if not readings or is_near or _in_doubt(chain, place, trees, readings[0]):
        return None
    right_value = readings[0][0] if known.modulus is None else readings[0][0] % known.modulus
    return Checked(*here, "wrong", "false_equality", right_value)


def _numbers(tree: Node) -> frozenset[Fraction]:
    return frozenset(value(part) for part in walk(tree) if part.op == "number" and len(part.text) < 30)


def _readings(trees: tuple[Node, Node]) -> Iterator[tuple[Fraction, Fraction]]:
    """Yields the values of both sides, with a percent sign as a hundredth and as a mere unit."""
    has_percent = any(part.op == "%" for tree in trees for part in walk(tree))
    for percents in product((100, 1), repeat=2) if has_percent else [(100, 100)]:
        try:
            yield value(trees[0], percent=percents[0]), value(trees[1], percent=percents[1])
        except UnreadError:
            continue


def _agree(left: Fraction, right: Fraction, written: Node, modulus: int | None) -> bool:
    """Returns whether the right side is the left one, or it rounded to the digits that are written."""
    if modulus is not None:
        return (left - right) % modulus == 0
    digits = _decimals(written)
    return left == right or (digits > 0 and abs(left - right) <= Fraction(1, 2 * 10**digits))


def _decimals(tree: Node) -> int:
    while tree.op in ("neg", "%"):
        [tree] = tree.args
    return len(tree.text.partition(".")[2]) if tree.op == "number" else 0


def _in_doubt(chain: Chain, place: int, trees: tuple[Node, Node], values: tuple[Fraction, Fraction]) -> bool:
    """Returns whether sides that differ may still be right in another reading."""
    left, right = chain.sides[place : place + 2]
    if left.tokens[0].text in _OPENS_NO_SIDE or chain.may_go_on(place):
        return True
    if any(_is_ambiguous(part) for tree in trees for part in walk(tree)):
        return True
    if right.after is not None and right.after.kind == "word" and not _is_written_number(trees[1]):
        return True  # `= 3 + 4 apples and` may go on
    is_alone = (chain.sides[0].before, right.after) == (None, None)
    if values[0] and values[1] and not is_alone:
        ratio = abs(values[0] / values[1])
        if ratio in _UNIT_RATIOS or 1 / ratio in _UNIT_RATIOS:
            return True
    return _is_cut_off(*values, trees[1])


def _is_cut_off(left: Fraction, right: Fraction, written: Node) -> bool:
    """Returns whether the right side may be the left one without its further digits: 2/3 = 0.66."""
    return left.denominator != 1 and abs(left - right) < Fraction(1, 10 ** _decimals(written))


def _is_written_number(tree: Node) -> bool:
    if tree.op in ("neg", "%"):
        return _is_written_number(tree.args[0])
    return tree.op == "number" or (tree.op == "/" and all(arg.op == "number" for arg in tree.args))


def _is_ambiguous(node: Node) -> bool:
    """Returns whether people read a part in two ways.

    So they do with stacked divisions, `1/2(3 + 4)`, a mixed number, and `50 + 20%`.
    """
    if node.op in ("+", "-") and (node.args[0].op == "%") != (node.args[1].op == "%"):
        return True
    if node.op == "/":
        return "/" in (node.args[0].op, node.args[1].op)
    return node.op == "mixed" or (node.text == SIDE_BY_SIDE and node.args[0].op == "/")


def _check_symbols(
    trees: tuple[Node, Node], unknowns: set[str], here: tuple[int, int], known: Known
) -> Checked | None:
    """Checks an equation at every value that its one symbol can have; an identity is right anyway."""
    try:
        if _is_identity(trees, unknowns):
            return Checked(*here, "ok")
        [unknown] = unknowns
        given = [{unknown: root} for root in known.roots.get(unknown, ())]
        sides = [(value(trees[0], at), value(trees[1], at)) for at in given]
    except ValueError:
        return None
    hold = {_agree(left, right, trees[1], None) for left, right in sides}
    if len(hold) != 1 or (False in hold and any(_is_cut_off(*pair, trees[1]) for pair in sides)):
        return None
    return Checked(*here, "ok") if True in hold else Checked(*here, "wrong", "contradiction")


def _is_identity(trees: tuple[Node, Node], unknowns: set[str]) -> bool:
    """Returns whether both sides agree at eight points, which lie on no line."""
    return all(
        _holds(trees, {name: point ** (i + 1) + i for i, name in enumerate(sorted(unknowns))})
        for point in _POINTS
    )


def _holds(trees: tuple[Node, Node], known: Mapping[str, Fraction]) -> bool:
    return value(trees[0], known) == value(trees[1], known)


def roots(trees: tuple[Node, Node], unknown: str) -> tuple[Fraction, ...]:
    """Returns all solutions of a linear or quadratic equation if they are rational, else nothing."""

    def gap(x: Fraction) -> Fraction:
        return value(trees[0], {unknown: x}) - value(trees[1], {unknown: x})

    try:
        c, one, other = gap(Fraction(0)), gap(Fraction(1)), gap(Fraction(-1))
        a, b = (one + other) / 2 - c, (one - other) / 2
        if any(gap(x) != a * x * x + b * x + c for x in _POINTS):
            return ()
        if a == 0:
            return (-c / b,) if b else ()
        root = value(Node("call", "sqrt", (_node(b * b - 4 * a * c), Node("number", "2"))))
    except UnreadError:
        return ()
    return tuple(sorted({(-b - root) / (2 * a), (-b + root) / (2 * a)}))


def _node(number: Fraction) -> Node:
    parts = [Node("number", str(abs(part))) for part in (number.numerator, number.denominator)]
    ratio = Node("/", args=tuple(parts))
    return Node("neg", args=(ratio,)) if number < 0 else ratio
