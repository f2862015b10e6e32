r"""Final answers: where one is, and whether it is the gold one.

An answer is what the last balanced `\boxed{}` holds, nothing else: never a number that merely comes last.
Numbers, words and what is made of them are compared here, exactly. Whatever needs more, surds and formulas,
first passes the form gate, no more nodes of a kind than gold has, so that no answer restates the task. Then
`env.math.opinions` are asked, inside the sandbox.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from env.math.expressions import Node, UnreadError, parse, symbols, value, walk
from env.math.marks import behind
from env.math.quantities import WORDS, quantity, same_quantity
from env.math.shapes import Shape, shape, spelt, unnamed
from env.math.tokens import tokens
from env.math.units import Unit, unit_of
from env.math.words import FUNCTIONS

MAX_ANSWER = 400
"""Characters of an answer that is read."""
_BOX_OR_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|[{}]")
_THINK, _END_THINK = "<think>", "</think>"
_UNIT = re.compile(
    r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}((?:\s*\^\s*\{?[23]\}?)?)$|(?<=\s)([a-zA-Z][a-zA-Z ]+)$"
)

Ask = Callable[[str, str], bool]
"""(gold formula, answer formula) -> whether they are equal in value, by opinions that need the sandbox."""


class Judgement(NamedTuple):
    """Whether an answer is right, and why not: no_answer, too_long, unread, form, unequal."""

    is_right: bool
    why: str = ""


class FormError(ValueError):
    """An answer has another form than gold: it computes more than gold does, or was not factored."""


def extract(text: str, mark: str = "") -> str | None:
    r"""Returns the answer that a message gives, or None.

    It reads what follows the last `</think>`, and nothing of a message whose thinking never ends. A `mark`,
    gsm8k's `####`, declares an answer where no box is.

    Example:
        >>> extract(r"\boxed{1} no: \boxed{\frac{1}{2}}")
        '\\frac{1}{2}'
    """
    text = text.rpartition(_END_THINK)[2]
    if _THINK in text:
        return None
    opened, boxes = list[tuple[int, bool]](), list[tuple[int, int]]()
    for found in _BOX_OR_BRACE.finditer(text):
        if found[0] != "}":
            opened.append((found.end(), found[0] != "{"))
        elif opened:
            start, is_box = opened.pop()
            boxes += [(start, found.start())] * is_box
    if boxes:
        start, end = max(boxes)
        return text[start:end].strip() or None
    return behind(mark, text) if mark else None


def judge(gold: str, answer: str, ask: Ask) -> Judgement:
    """Returns whether an answer is the gold one; total, but for what `ask` raises."""
    gold, answer = spelt(gold), spelt(answer[: MAX_ANSWER + 1])
    if len(answer) > MAX_ANSWER:
        return Judgement(False, "too_long")
    if _squeezed(gold) == _squeezed(answer):
        return Judgement(True)
    try:
        if _same(*_shapes(gold, answer), ask):
            return Judgement(True)
    except FormError:
        return Judgement(False, "form")
    except (ValueError, RecursionError):
        return Judgement(False, "unread")
    return Judgement(False, "unequal")


def _shapes(gold: str, answer: str) -> tuple[Shape, Shape]:
    """Returns what both are made of, without the name of a result, `x =`, that only one of them has."""
    if "=" not in gold:
        gold, answer = unnamed(gold), unnamed(answer)
    elif "=" not in answer and quantity(unnamed(gold)) is not None:
        gold = unnamed(gold)
    return shape(gold), shape(answer)


def _squeezed(text: str) -> str:
    """Returns a text without blanks, but for those between digits: 2 1/2 is not 21/2."""
    return re.sub(r" (?!\d)|(?<!\d) ", "", text)


def _same(gold: Shape, answer: Shape, ask: Ask) -> bool:
    if gold.kind == "one" and answer.kind == "one":
        return _same_one(gold.text, answer.text, ask)
    if gold.kind != answer.kind or gold.brackets != answer.brackets or len(gold.parts) != len(answer.parts):
        return False
    if gold.kind in ("row", "matrix"):
        return all(_same(g, a, ask) for g, a in zip(gold.parts, answer.parts, strict=True))
    if gold.kind == "equation":
        return any(
            all(_matches(g, a, ask) for g, a in zip(gold.parts, sides, strict=True))
            for sides in (answer.parts, answer.parts[::-1])
        )
    left = list(answer.parts)  # some and union: in any order
    for part in gold.parts:
        match = next((place for place, other in enumerate(left) if _matches(part, other, ask)), None)
        if match is None:
            return False
        del left[match]
    return True


def _matches(gold: Shape, answer: Shape, ask: Ask) -> bool:
    """Returns whether two parts are the same; one that cannot be compared may be meant for another part."""
    try:
        return _same(gold, answer, ask)
    except ValueError:
        return False


def _same_one(gold: str, answer: str, ask: Ask) -> bool:
    gold, answer = _plain(gold), _plain(answer)
    if _squeezed(gold) == _squeezed(answer) or (
        len(gold) > 2 and gold.isalpha() and _letters(gold) == _letters(answer)
    ):
        return True
    if (expected := quantity(gold)) is not None:
        if (found := quantity(answer)) is None:
            raise FormError(f"{answer!r} is no number")
        return same_quantity(expected, found)
    (gold, unit), (answer, own_unit) = _without_unit(gold), _without_unit(answer)
    if unit is not None and own_unit is not None and unit != own_unit:
        return False
    try:
        tree = parse(tokens(gold))
    except UnreadError:  # gold is words, or beyond this reader: then letter for letter
        return _letters(gold) == _letters(answer) != ""
    own = parse(tokens(answer))
    check_form(tree, own)
    if tree == own:
        return True
    if symbols(tree) != symbols(own):
        return False
    try:
        return value(tree) == value(own)
    except UnreadError:
        return ask(gold, answer)


def _plain(text: str) -> str:
    """Returns a text without a plus before it, or brackets around one letter, as of choices."""
    text = text.strip().removeprefix("+")
    inside = WORDS.sub(r"\1", text).strip()
    choice = re.fullmatch(r"\(?([A-Z])\)?", inside)
    return choice[1] if choice else text.strip()


def _without_unit(text: str) -> tuple[str, Unit | None]:
    """Returns a formula and the unit behind it. Raises ValueError if what stands there counts."""
    found = _UNIT.search(text)
    name = "" if found is None else (found[1] or found[3] or "").strip()
    before = text[: found.start()].strip() if found else ""
    if found is None or before[-1:] in ("", *"+-*/^=(") or name in FUNCTIONS or len(name) < 2:
        return text, None
    return before, unit_of(f" {name}{found[2] or ''}".replace(" ^", "^"))


def _letters(text: str) -> str:
    text = WORDS.sub(r" \1 ", text).casefold()
    return re.sub(r"[\s\"'\u2018-\u201d]", "", text).rstrip(".")


def check_form(gold: Node, answer: Node) -> None:
    """Raises FormError if an answer computes more than gold does, or is not factored where gold is."""
    if extra := Counter(_kinds(answer)) - Counter(_kinds(gold)):
        raise FormError(f"the answer has more {', '.join(sorted(extra))} than gold")
    if _num_factors(gold) > 1 and _num_factors(answer) < 2:
        raise FormError("the answer is not factored")


def _kinds(tree: Node) -> Iterator[str]:
    """Yields what a formula computes with; products, signs and fractions are free."""
    for node in walk(tree):
        if node.op in ("+", "-", "mixed"):
            yield "+"
        elif node.op == "^":
            yield "root" if _is_root(node.args[1]) else "^"
            if _is_symbolic_sum(node.args[0]):
                yield "factor"
        elif node.op == "call":
            yield "root" if node.text == "sqrt" else node.text
        elif node.op in ("!", "%", "°"):
            yield node.op
        elif node.op == "*":
            if any(map(_is_symbolic_sum, node.args)) and not any(map(_is_number_ratio, node.args)):
                yield "factor"
            if all(map(_has_number, node.args)):
                yield "product of numbers"


def _has_number(node: Node) -> bool:
    """Returns whether a number or a ratio of numbers is a factor of a product."""
    if node.op in ("*", "neg"):
        return any(map(_has_number, node.args))
    return node.op in ("number", "/") and not symbols(node)


def _is_root(exponent: Node) -> bool:
    try:
        return value(exponent).denominator != 1
    except UnreadError:
        return False


def _is_symbolic_sum(node: Node) -> bool:
    return node.op in ("+", "-") and bool(symbols(node))


def _is_number_ratio(node: Node) -> bool:
    """Returns whether a factor is such as 1/2, which is free: half of a sum is the sum over two."""
    return node.op == "/" and not symbols(node)


def _num_factors(tree: Node) -> int:
    """Returns how many sums with symbols a product has; a power counts twice."""
    if tree.op == "neg":
        return _num_factors(tree.args[0])
    if tree.op == "*":
        return sum(map(_num_factors, tree.args))
    if tree.op == "^":
        return 2 * _num_factors(tree.args[0])
    return int(_is_symbolic_sum(tree))
