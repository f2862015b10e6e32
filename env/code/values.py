"""Values as plain JSON: all that passes between a solution, its tests and who compares.

This text also runs inside the box, before `runner.py`, so it stands alone. What comes out of a box is only
ever read by `decode`: it makes objects of exactly the types below, whatever a solution's own classes do.
"""

import math
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
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if depth == 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [encode(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key, depth - 1), encode(item, depth - 1)] for key, item in value.items()]}
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
    if depth < 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [decode(item, depth - 1) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        [(name, inside)] = value.items()
        if isinstance(inside, str):
            if name == "int":
                return int(inside, 16)
            if name == "float":
                return float(inside)
            if name == "bytes":
                return bytes.fromhex(inside)
        elif isinstance(inside, list):
            return _decoded_items(name, inside, depth - 1)
    raise ValueError("not what encode writes")


def _decoded_items(name: str, items: list[Any], depth: int) -> Any:
    try:
        if name == "dict":
            return {decode(key, depth): decode(item, depth) for key, item in items}
        if name == "complex":
            real, imaginary = (float(decode(part)) for part in items)
            return complex(real, imaginary)
        return SEQUENCES[name](decode(item, depth) for item in items)
    except (TypeError, KeyError, OverflowError):  # a key that nothing can be looked up by, an unknown name
        raise ValueError("not what encode writes") from None
