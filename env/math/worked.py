"""Worked solutions: lines of text with calculations in them, so that an error in one carries on.

In `["48/2 = <<0>> clips", "48 + <<0>> = <<1>>"]` with the calculations `["48/2", "48+<<0>>"]` `<<k>>` stands
for the result of calculation k. Families make them so, and gsm8k's annotations say the same.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any, Self

from env.math.expressions import UnreadError, parse, value
from env.math.tokens import tokens
from pipeline.errors import ConfigError

_PLACE = re.compile(r"<<(\d+)>>")


@dataclass(frozen=True, slots=True)
class Worked:
    """A solution; its last line is the one that gives the answer."""

    lines: tuple[str, ...]
    calculations: tuple[str, ...]
    results: tuple[str, ...] = ()  # as they are written in a data set; empty: as `spelt` writes them
    modulus: int | None = None

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Self:
        """Returns the solution in a task's details. Raises ConfigError if there is none."""
        if "worked" not in details:
            raise ConfigError(
                "a task has no worked solution, so no scripted solver can demonstrate it: families and rows "
                "with gsm8k's annotations have one. Next: sft.data=FILE with solutions of yours, or a "
                "model in sft.base, with sft.num_updates = 0"
            )
        given = details["worked"]
        lines, calculations, results = (tuple(given[name]) for name in ("lines", "calculations", "results"))
        return cls(lines, calculations, results, given["modulus"])

    def as_details(self) -> dict[str, Any]:
        """Returns the solution as a part of a task's details, in JSON."""
        return {"worked": asdict(self)}

    def said(self, slips: Mapping[int, str]) -> list[str]:
        """Returns the results as they are written, with these wrong ones and all that follows from them.

        A calculation that then has no exact value keeps the result that it had.
        """
        said: list[str] = []
        for place, calculation in enumerate(self.calculations):
            said.append(slips.get(place) or self._result(place, calculation, said))
        return said

    def _result(self, place: int, calculation: str, said: Sequence[str]) -> str:
        known = self.results[place] if self.results else "0"
        if self.results and all(said[k] == self.results[k] for k in _places(calculation)):
            return known
        try:
            number = value(parse(tokens(_PLACE.sub(lambda found: f"({said[int(found[1])]})", calculation))))
        except UnreadError:
            return known
        return spelt(number if self.modulus is None else number % self.modulus)

    def text(self, said: Sequence[str]) -> str:
        """Returns the solution with these results."""
        return "\n".join(_PLACE.sub(lambda found: said[int(found[1])], line) for line in self.lines)

    def without(self, place: int) -> Self:
        """Returns the solution of somebody who leaves a calculation out and goes on with its first number.

        No line of it is false.
        """
        seen: set[int] = set()
        lines = []
        for line in self.lines:
            new = set(_places(line)) - seen
            seen |= new
            if new != {place}:
                lines.append(line)
        first = re.match(r"[\s(]*(<<\d+>>|[\d.]+)", self.calculations[place])
        shortened = (first[1] if first else "0",)
        calculations = self.calculations[:place] + shortened + self.calculations[place + 1 :]
        return replace(self, lines=tuple(lines), calculations=calculations, results=())


def _places(text: str) -> list[int]:
    return [int(found) for found in _PLACE.findall(text)]


def spelt(number: Fraction) -> str:
    """Returns a number as solutions write it: whole, as a decimal number if that ends, else as a ratio.

    Example:
        >>> [spelt(Fraction(*pair)) for pair in [(6, 2), (-1, 8), (1, 3)]]
        ['3', '-0.125', '1/3']
    """
    bottom, digits = number.denominator, 0
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
            digits += 1
    if bottom > 1:
        return f"{number.numerator}/{number.denominator}"
    if number.denominator == 1:
        return str(number.numerator)
    scaled = abs(number) * 10**digits
    whole, rest = divmod(int(scaled), 10**digits)
    return f"{'-' if number < 0 else ''}{whole}.{rest:0{digits}d}".rstrip("0")


def slip(rng: Random, result: str, modulus: int | None = None) -> str:
    """Returns a wrong result as people write one: off by one, two or ten in the last digit that is written.

    A result that is no number in digits is off by one.
    """
    text = result.replace(",", "")
    number = value(parse(tokens(text)))
    digits = len(text.partition(".")[2])
    while True:
        off = rng.choice((-10, -2, -1, 1, 2, 10))
        wrong = number + Fraction(off, 10**digits)
        if modulus is not None:
            wrong %= modulus
        if wrong != number and (wrong > 0 or number <= 0):
            return spelt(wrong)
