"""Values as plain JSON: all that passes between a solution, its tests and who compares.

This text also runs inside the box, before `runner.py`, so it stands alone. What comes out of a box is only
ever read by `decode`: it makes objects of exactly the types below, whatever a solution's own classes do.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

MAX_DEPTH = 50
EXACT_INTS = 2**53
"""Beyond it an integer is written in hexadecimal: every JSON reader knows smaller ones exactly."""
SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Returns a value as JSON; types that JSON has not are objects of one key, their type.

    Raises ValueError for what is no plain data, or is nested more than `depth` deep. A value of a subclass is
    written as one of the base type.

    Example:
        >>> encode({"a": (1, 2.5, None)})
        {'dict': [['a', {'tuple': [1, 2.5, None]}]]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value.encode()  # half a pair of surrogates is no text
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value) if -EXACT_INTS < value < EXACT_INTS else {"int": int.__format__(value, "x")}
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else {"float": float.__repr__(value)}
    if isinstance(value, complex):
        return {"complex": complex.__repr__(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if depth == 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [encode(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {"dict": [encode(list(pair), depth - 1) for pair in value.items()]}
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            items = [encode(item, depth - 1) for item in value]
            return {name: items if kind is tuple else sorted(items, key=repr)}  # a set has no order
    raise ValueError("no plain data")


def decode(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Returns the value that `encode` wrote; raises ValueError for anything that it cannot have written.

    Example:
        >>> decode(encode({"a": (1, 2.5, None)}))
        {'a': (1, 2.5, None)}
    """
    if value is None or isinstance(value, bool | str | int | float):
        return value
    name, inside = "list", value
    if isinstance(value, dict) and len(value) == 1:
        [(name, inside)] = value.items()
    if isinstance(inside, str) and name in _FROM_TEXT:
        return _FROM_TEXT[name](inside)
    if isinstance(inside, list) and name in _FROM_LIST and isinstance(value, dict) == (name != "list"):
        if depth == 0:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        try:
            return _FROM_LIST[name](decode(item, depth - 1) for item in inside)
        except (TypeError, OverflowError):  # a key that nothing can be looked up by, no pair
            pass
    raise ValueError("not what encode writes")


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
}
_FROM_LIST: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "dict": dict, **SEQUENCES}
