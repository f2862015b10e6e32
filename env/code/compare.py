"""Whether a returned value is the expected one: a pure function of plain data, outside of every box."""

import math
from typing import Any, Literal

Comparison = Literal["exact", "approx", "unordered"]
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""Tolerances of `approx`: room for another order of additions, none for another formula."""


def agree(got: Any, expected: Any, comparison: Comparison) -> bool:
    """Returns whether a value passes a test.

    `exact`: equal, and of equal types all the way down. `approx`: the same, but numbers may differ by
    `RELATIVE` or `ABSOLUTE`, and whole ones may stand for floating ones. `unordered`: lists of exactly the
    same items, in any order.

    Example:
        >>> agree([1, 2], [2, 1], "unordered"), agree(1.0, 1, "exact"), agree(0.1 + 0.2, 0.3, "approx")
        (True, False, True)
    """
    if comparison == "unordered":
        if type(got) is not list or len(got) != len(expected):
            return False
        left = list(expected)
        for item in got:
            place = next((i for i, other in enumerate(left) if _same(item, other, approx=False)), None)
            if place is None:
                return False
            del left[place]
        return True
    return _same(got, expected, approx=comparison == "approx")


def _same(got: Any, expected: Any, *, approx: bool) -> bool:
    if approx and _is_number(got) and _is_number(expected):
        try:
            return math.isclose(got, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        except OverflowError:  # a whole number beyond all floating ones
            return bool(got == expected)
    if type(got) is not type(expected):
        return False
    if isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(
            _same(a, b, approx=approx) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(expected, dict):
        return got.keys() == expected.keys() and all(
            _same(got[key], expected[key], approx=approx) for key in expected
        )
    return bool(got == expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
