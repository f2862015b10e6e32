"""Linear equations in x with whole or rational solutions."""

from random import Random

from env.math.families.problem import ASK_FOR_LINES, Problem, chained

LARGEST = {1: 20, 2: 30, 3: 12, 4: 12, 5: 30}
"""Level -> largest number in the equation and its solution. Start values."""


def make(rng: Random, level: int) -> Problem:
    """Returns an equation: a x + b = c (1, 2), a x + b = c x + d (3, 5), a (x + b) = c x + d (4); a > c.

    Solutions are positive at level 1, may be negative above, and fractions at level 5.
    """
    largest = LARGEST[level]
    x = rng.randint(1 if level == 1 else -largest, largest)
    a, b = rng.randint(2, 9), rng.randint(1, largest)
    if level <= 2:
        lines = [f"{a}x = {a * x + b} - {b}", f"x = <<0>> / {a}"]
        return _problem(f"{a}x + {b} = {a * x + b}", lines, [f"{a * x + b} - {b}", f"<<0>> / {a}"])
    c = rng.randint(1, a - 1)
    left, factor = (f"{a}(x + {b})", a) if level == 4 else (f"{a}x + {b}", 1)
    d = (a - c) * x + factor * b + (rng.randint(1, a) if level == 5 else 0)
    right = f"{c}x {'+' if d >= 0 else '-'} {abs(d)}"
    first = [f"{a} * {b}"] if level == 4 else []
    moved = "<<0>>" if level == 4 else str(b)
    calculations = [*first, f"{a} - {c}", f"{d} - {moved}"]
    n = len(calculations)
    lines = [*calculations, f"x = <<{n - 1}>> / <<{n - 2}>>"]
    return _problem(f"{left} = {right}", lines, [*calculations, f"<<{n - 1}>> / <<{n - 2}>>"])


def _problem(equation: str, lines: list[str], calculations: list[str]) -> Problem:
    return chained(f"Solve {equation} for x. {ASK_FOR_LINES}", lines, calculations)
