"""Sums modulo 100, a term at a time: what a model of a million parameters can learn from scratch."""

from random import Random

from env.math.families.problem import Problem, chained

MODULUS = 100
LEVELS = {1: (4, 9), 2: (6, 9), 3: (5, 49), 4: (6, 99), 5: (10, 99)}
"""Level -> how many terms, and the largest one. Start values."""


def make(rng: Random, level: int) -> Problem:
    """Returns a problem such as `37 + 8 + 95 (mod 100)`."""
    number, largest = LEVELS[level]
    terms = [rng.randint(1, largest) for _ in range(number)]
    lines = [f"{terms[0]} + {terms[1]}"] + [f"<<{k}>> + {term}" for k, term in enumerate(terms[2:])]
    return chained(f"{' + '.join(map(str, terms))} (mod {MODULUS})", lines, lines, modulus=MODULUS)
