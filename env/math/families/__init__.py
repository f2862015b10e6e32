"""Problems that are made by rule, in five levels, each with a worked solution."""

from collections.abc import Callable
from random import Random

from env.math.families import arith, chain_add, linear, units, word
from env.math.families.problem import Problem

FAMILIES: dict[str, Callable[[Random, int], Problem]] = {
    "chain_add": chain_add.make,
    "arith": arith.make,
    "linear": linear.make,
    "word": word.make,
    "units": units.make,
}
"""Name -> (random numbers, level from 1 to 5) -> a problem."""
LEVELS = range(1, 6)

__all__ = ["FAMILIES", "LEVELS", "Problem"]
