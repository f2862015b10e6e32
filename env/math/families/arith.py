"""Expressions of whole numbers, one operation at a time."""

from random import Random

from env.math.families.problem import ASK_FOR_LINES, Problem, chained

LEVELS = {1: (2, 20), 2: (3, 50), 3: (4, 100), 4: (5, 500), 5: (6, 1000)}
"""Level -> how many operations, and the largest number added. Start values."""


def make(rng: Random, level: int) -> Problem:
    """Returns a problem such as `(12 + 5) * 3 - 8`; divisions come out even."""
    number, largest = LEVELS[level]
    total = rng.randint(2, largest)
    text, is_sum, lines = str(total), False, []
    for place in range(number):
        op = rng.choice("++--*/")
        operand = rng.randint(2, largest if op in "+-" else 9)
        if op == "/":
            divisors = [d for d in range(2, 10) if total % d == 0]
            op, operand = ("/", rng.choice(divisors)) if divisors else ("+", operand)
        if op in "*/" and is_sum:
            text = f"({text})"
        lines.append(f"{f'<<{place - 1}>>' if place else total} {op} {operand}")
        text, is_sum = f"{text} {op} {operand}", op in "+-"
        total = {"+": total + operand, "-": total - operand, "*": total * operand, "/": total // operand}[op]
    return chained(f"Compute {text}. {ASK_FOR_LINES}", lines, lines)
