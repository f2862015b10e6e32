"""Expressions as trees: read from tokens by a bounded parser, valued exactly, by no `eval`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import factorial, isqrt
from typing import Literal

from env.math.tokens import Token

Op = Literal["number", "symbol", "+", "-", "*", "/", "^", "neg", "%", "!", "°", "mixed", "call"]
MOST_TOKENS = 200
MOST_BITS = 20_000
"""Of a number: 4,300 digits and more are refused by Python itself."""
SIDE_BY_SIDE = "side by side"
"""Text of a product without a sign."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class UnreadError(ValueError):
    """A text is no expression, or has no exact value that is small enough."""


@dataclass(frozen=True, slots=True)
class Node:
    """A tree; `text` is a number as written, a symbol, the name of a function, or `SIDE_BY_SIDE`."""

    op: Op
    text: str = ""
    args: tuple["Node", ...] = ()


def walk(node: Node) -> Iterator[Node]:
    """Yields a tree's nodes, the root first."""
    yield node
    for arg in node.args:
        yield from walk(arg)


def symbols(node: Node) -> set[str]:
    """Returns the symbols of a tree but for constants with a value of their own."""
    return {part.text for part in walk(node) if part.op == "symbol"} - {"pi", "e", "i", "∞"}


def parse(tokens: Sequence[Token]) -> Node:
    """Returns the tree of an expression. Raises UnreadError if the tokens are none, or too many.

    Usual precedences; a power binds to the right. What stands side by side is multiplied, unless the second
    is a number; a whole number before a fraction of numbers is a mixed one.
    """
    if not 0 < len(tokens) <= MOST_TOKENS:
        raise UnreadError("too long" if tokens else "empty")
    parser = _Parser(list(tokens))
    try:
        node = parser.sum()
    except RecursionError:  # 200 brackets are fewer than Python's limit, unless its stack is already deep
        raise UnreadError("too deep") from None
    if parser.place < len(parser.tokens):
        raise UnreadError(f"cannot read {parser.tokens[parser.place].text!r}")
    return node


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.place = 0

    @property
    def next(self) -> Token | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def accept(self, *texts: str) -> str:
        """Returns the next token's text and passes it if it is one of these, else an empty string."""
        token = self.next
        if token is None or token.text not in texts:
            return ""
        self.place += 1
        return token.text

    def sum(self) -> Node:
        node = self.product()
        while op := self.accept("+", "-"):
            node = Node(op, args=(node, self.product()))  # type: ignore[arg-type]
        return node

    def product(self) -> Node:
        node = self.signed()
        while True:
            if op := self.accept("*", "/"):
                node = Node(op, args=(node, self.signed()))  # type: ignore[arg-type]
            elif (token := self.next) and (token.kind in ("symbol", "function") or token.text in _CLOSING):
                factor = self.power()
                is_mixed = _is_whole(node) and factor.op == "/" and token.text == "frac" and _is_ratio(factor)
                node = Node("mixed" if is_mixed else "*", "" if is_mixed else SIDE_BY_SIDE, (node, factor))
            else:
                return node

    def signed(self) -> Node:
        if sign := self.accept("-", "+"):
            inner = self.signed()
            return Node("neg", args=(inner,)) if sign == "-" else inner
        return self.power()

    def power(self) -> Node:
        node = self.atom()
        while mark := self.accept("%", "!", "°", "²", "³"):
            if mark in "²³":
                node = Node("^", args=(node, Node("number", "2" if mark == "²" else "3")))
            else:
                node = Node(mark, args=(node,))  # type: ignore[arg-type]
        if self.accept("^"):
            exponent = self.signed()
            if exponent == Node("symbol", "°"):
                return Node("°", args=(node,))
            node = Node("^", args=(node, exponent))
        return node

    def atom(self) -> Node:
        token = self.next
        if token is None:
            raise UnreadError("ends too early")
        self.place += 1
        if token.kind == "number":
            return Node("number", token.text)
        if token.kind == "symbol" or token.text == "°":
            return Node("symbol", token.text)
        if token.text in _CLOSING:
            inner = self.sum()
            if not self.accept(_CLOSING[token.text]):
                raise UnreadError(f"{token.text} is not closed")
            return inner
        if token.kind == "function":
            return self.call(token.text)
        raise UnreadError(f"cannot read {token.text!r}")

    def call(self, name: str) -> Node:
        if name == "frac":
            return Node("/", args=(self.short(), self.short()))
        if name == "binom":
            return Node("call", name, (self.short(), self.short()))
        if name == "sqrt":
            index = Node("number", "2")
            if self.accept("["):
                index = self.sum()
                if not self.accept("]"):
                    raise UnreadError("[ is not closed")
            return Node("call", name, (self.short(), index))
        if self.accept("^"):  # sin^2 x
            exponent = self.short()
            return Node("^", args=(Node("call", name, (self.power(),)), exponent))
        return Node("call", name, (self.power(),))

    def short(self) -> Node:
        r"""Reads an argument: in brackets, or one digit or symbol, as in `\frac12`."""
        token = self.next
        if token is None or token.text in _CLOSING or token.kind != "number" or len(token.text) == 1:
            return self.atom()
        first = Token("number", token.text[0], token.start, token.start + 1)
        rest = Token("number", token.text[1:], token.start + 1, token.end)
        self.tokens[self.place : self.place + 1] = [first, rest]
        return self.atom()


def _is_whole(node: Node) -> bool:
    return node.op == "number" and node.text.isdigit()


def _is_ratio(node: Node) -> bool:
    return node.op == "/" and all(map(_is_whole, node.args))


def value(node: Node, known: Mapping[str, Fraction] | None = None, percent: int = 100) -> Fraction:
    """Returns a tree's exact value, with values of its symbols; n % is n / `percent`.

    Raises UnreadError if it has none, is irrational, or has more than `MOST_BITS` bits.
    """
    args = [value(arg, known, percent) for arg in node.args]
    if node.op == "number":
        return _number(node.text)
    if node.op == "symbol":
        if known is None or node.text not in known:
            raise UnreadError(f"{node.text} has no value")
        return known[node.text]
    if node.op == "call":
        return _called(node.text, args)
    if node.op == "%":
        return args[0] / percent
    if node.op == "!":
        return _factorial(args[0])
    if node.op == "°":
        return args[0]
    if node.op == "neg":
        return -args[0]
    left, right = args
    if node.op == "^":
        return _power(left, right)
    if node.op == "/" and right == 0:
        raise UnreadError("division by zero")
    if _bits(left) + _bits(right) > MOST_BITS:
        raise UnreadError("too large")
    if node.op in ("+", "mixed"):
        return left + right
    if node.op == "-":
        return left - right
    return left * right if node.op == "*" else left / right


def _number(text: str) -> Fraction:
    if len(text) > MOST_BITS // 4:
        raise UnreadError("too many digits")
    whole, _, decimals = text.partition(".")
    try:
        return Fraction(int((whole + decimals) or "0"), 10 ** len(decimals))
    except ValueError as error:  # Python's own limit of digits
        raise UnreadError(str(error)) from None


def _bits(number: Fraction) -> int:
    return number.numerator.bit_length() + number.denominator.bit_length()


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator == 2:
        return _power(_root(base), Fraction(exponent.numerator))
    if exponent.denominator != 1 or (base == 0 and exponent < 0):
        raise UnreadError("no rational power")
    if abs(exponent.numerator) * _bits(base) > MOST_BITS:
        raise UnreadError("too large")
    return Fraction(base**exponent.numerator)


def _root(number: Fraction) -> Fraction:
    if number < 0:
        raise UnreadError("the root of a negative number")
    roots = [isqrt(number.numerator), isqrt(number.denominator)]
    if (roots[0] ** 2, roots[1] ** 2) != (number.numerator, number.denominator):
        raise UnreadError("irrational")
    return Fraction(*roots)


def _factorial(number: Fraction) -> Fraction:
    if number.denominator != 1 or not 0 <= number <= 500:
        raise UnreadError("no factorial")
    return Fraction(factorial(int(number)))


def _called(name: str, args: Sequence[Fraction]) -> Fraction:
    if name == "sqrt" and args[1] == 2:
        return _root(args[0])
    raise UnreadError(f"{name} is irrational")
