"""Prices, per cents and units: answers in dollars, per cents, kilometres, minutes."""

from collections.abc import Callable
from random import Random

from env.math.families.problem import ASK_FOR_LINES, Problem, chained

SIZES = {1: 5, 2: 10, 3: 20, 4: 40, 5: 80}
"""Level -> how large its numbers are. Start values."""


def make(rng: Random, level: int) -> Problem:
    """Returns one of four kinds of problems; above level 2 each has further calculations."""
    kind: Callable[[Random, int, bool], Problem] = rng.choice((_discount, _share, _journey, _wages))
    return kind(rng, SIZES[level], level > 2)


def _discount(rng: Random, size: int, is_long: bool) -> Problem:
    price, percent = 20 * rng.randint(2, 3 * size), 5 * rng.randint(1, 12)
    lines = [f"{price} * {percent} / 100", f"{price} - <<0>>"]
    said = f"A coat costs ${price}. Its price is lowered by {percent} percent."
    if is_long:
        number = rng.randint(2, 9)
        lines.append(f"<<1>> * {number}")
        return _asked(f"{said} What do {number} of these coats cost then, in dollars?", lines, before="\\$")
    return _asked(f"{said} What does it cost then, in dollars?", lines, before="\\$")


def _share(rng: Random, size: int, is_long: bool) -> Problem:
    percent, number = rng.randint(1, 19) * 5, 20 * rng.randint(1, 2 * size)
    part = number * percent // 100
    if is_long:
        first = rng.randint(1, part) if part > 1 else part
        lines = [f"{first} + {part - first}", f"<<0>> * 100 / {number}"]
        said = f"Of {number} pupils {first} come by bus and {part - first} by train; the others walk."
        return _asked(f"{said} What percentage of the pupils do not walk?", lines, after="\\%")
    said = f"Of {number} pupils {part} come by bus. What percentage of the pupils come by bus?"
    return _asked(said, [f"{part} * 100 / {number}"], after="\\%")


def _journey(rng: Random, size: int, is_long: bool) -> Problem:
    speed, minutes = 12 * rng.randint(2, size), 5 * rng.randint(1, 3 * size)
    lines = [f"{speed} * {minutes} / 60"]
    said = f"A train goes {speed} km an hour for {minutes} minutes"
    if is_long:
        further = rng.randint(2, size)
        lines.append(f"<<0>> + {further}")
        return _asked(f"{said}, then another {further} km. How many km is that?", lines, after=" km")
    return _asked(f"{said}. How many km is that?", lines, after=" km")


def _wages(rng: Random, size: int, is_long: bool) -> Problem:
    wage, hours, days = rng.randint(8, 8 + size), rng.randint(2, 9), rng.randint(2, 2 + size)
    lines = [f"{wage} * {hours}", f"<<0>> * {days}"]
    said = f"Somebody earns ${wage} an hour and works {hours} hours a day for {days} days"
    if is_long:
        spent = rng.randint(1, wage * hours)
        lines.append(f"<<1>> - {spent}")
        return _asked(f"{said}, then spends ${spent}. How many dollars are left?", lines, before="\\$")
    return _asked(f"{said}. How many dollars is that?", lines, before="\\$")


def _asked(said: str, lines: list[str], *, before: str = "", after: str = "") -> Problem:
    return chained(f"{said} {ASK_FOR_LINES}", lines, lines, before=before, after=after)
