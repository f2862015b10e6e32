"""What is asked inside the sandbox: two opinions on formulas, and a judgement that rests on them.

Both must say equal: math-verify, by symbols, gold first and boxed, without its own timeouts, which need the
main thread; and sixty digits at several points. The first alone calls 1/2004! and 1/2006! equal, the second
alone what agrees at all points by chance.
"""

from typing import Any

import math_verify
import mpmath

from env.math.answers import judge
from env.math.expressions import Node, parse, symbols
from env.math.tokens import tokens

DIGITS = 60
_SPARE = 20
"""Digits that cancellation may cost before values count as different."""
MOST_EXPONENT = 10**6
_CONSTANTS = {"pi": r"\pi", "∞": r"\infty"}
_TIGHT = ("number", "symbol", "call", "/")
_POINTS = ((5, 7), (13, 11), (31, 17))


def judge_text(argument: dict[str, str]) -> dict[str, Any]:
    """Returns the judgement on `answer` against `gold` as JSON."""
    judgement = judge(argument["gold"], argument["answer"], both_equal)
    return {"is_right": judgement.is_right, "why": judgement.why}


def both_equal(gold: str, answer: str) -> bool:
    """Returns whether both opinions call two formulas equal."""
    return numerically_equal(gold, answer) and symbolically_equal(gold, answer)


def symbolically_equal(gold: str, answer: str) -> bool:
    """Returns math-verify's opinion on both, in LaTeX of our making; what it cannot compare is not equal."""
    formulas = (latex(parse(tokens(text))) for text in (gold, answer))
    try:
        trees = [math_verify.parse(rf"\boxed{{{formula}}}", parsing_timeout=None) for formula in formulas]
        return bool(math_verify.verify(*trees, timeout_seconds=None))
    except Exception:  # sympy raises many kinds
        return False


def latex(node: Node) -> str:
    """Returns a tree as LaTeX in which brackets leave no doubt."""
    args = [latex(arg) for arg in node.args]
    if node.op in ("number", "symbol"):
        return _CONSTANTS.get(node.text, node.text)
    if node.op == "call":
        if node.text == "sqrt":
            return rf"\sqrt{{{args[0]}}}" if args[1] == "2" else rf"\sqrt[{args[1]}]{{{args[0]}}}"
        return rf"\binom{{{args[0]}}}{{{args[1]}}}" if node.text == "binom" else rf"\{node.text}({args[0]})"
    if node.op == "/":
        return rf"\frac{{{args[0]}}}{{{args[1]}}}"
    held = [text if arg.op in _TIGHT else f"({text})" for arg, text in zip(node.args, args, strict=True)]
    one = {"neg": "-{}", "%": r"\frac{{{}}}{{100}}", "!": "{}!", "°": r"{}\cdot\frac{{\pi}}{{180}}"}
    if node.op in one:
        return one[node.op].format(held[0])
    mark = {"*": r" \cdot ", "^": "^", "mixed": "+"}.get(node.op, node.op)
    return mark.join(f"{{{text}}}" for text in held)


def numerically_equal(gold: str, answer: str) -> bool:
    """Returns whether formulas agree at every point where both have a value, and there are two such points.

    Symbols stand for positive rational numbers that no short formula takes for each other.
    """
    trees = parse(tokens(gold)), parse(tokens(answer))
    names = sorted(symbols(trees[0]) | symbols(trees[1]))
    agreed = 0
    with mpmath.workdps(DIGITS + _SPARE):
        for top, bottom in _POINTS:
            point = {name: mpmath.mpf(top + 2 * i * i) / (bottom + i) for i, name in enumerate(names)}
            try:
                ours, theirs = (_value(tree, point) for tree in trees)
            except (ZeroDivisionError, ValueError, OverflowError, TypeError):
                continue
            gap = mpmath.mpf(10) ** -DIGITS * max(abs(ours), abs(theirs))
            if not abs(ours - theirs) <= gap:  # nor if one of them is no number
                return False
            agreed += 1
    return agreed > 1


def _value(node: Node, point: dict[str, Any]) -> Any:
    args = [_value(arg, point) for arg in node.args]
    if node.op == "number":
        return mpmath.mpf(node.text)
    if node.op == "symbol":
        constants = {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "∞": mpmath.inf}
        return point[node.text] if node.text in point else +constants[node.text]
    if node.op == "call":
        return _called(node.text, args)
    simple = {"neg": lambda x: -x, "%": lambda x: x / 100, "!": mpmath.factorial, "°": mpmath.radians}
    if node.op in simple:
        return simple[node.op](args[0])
    left, right = args
    if node.op in ("+", "mixed"):
        return left + right
    if node.op == "-":
        return left - right
    if node.op == "*":
        return left * right
    if node.op == "/":
        return left / right
    if abs(right) > MOST_EXPONENT:
        raise OverflowError("an exponent that no value is computed for")
    return left**right


def _called(name: str, args: list[Any]) -> Any:
    if name == "sqrt":
        number, index = args
        return mpmath.root(number, int(index)) if index == mpmath.nint(index) else number ** (1 / index)
    if name == "binom":
        return mpmath.binomial(*args)
    names = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "log": "log10"}
    return getattr(mpmath, names.get(name, name))(args[0])
