"""The judge that must never meet a model's text outside a box: it evaluates what it reads."""

import os
import time
from typing import Any

import sympy


def judge(argument: dict[str, str]) -> Any:
    """Returns whether sympy says that two texts are equal. Sympy's own parser executes them."""
    return bool(sympy.simplify(sympy.sympify(argument["answer"]) - sympy.sympify(argument["gold"])) == 0)


def pid(argument: None) -> int:
    """Returns the process that answers."""
    return os.getpid()


_HOARD: list[bytes] = []


def hoard(megabytes: int) -> int:
    """Keeps as much memory for good; returns how often it did."""
    _HOARD.append(b"x" * megabytes * 2**20)
    return len(_HOARD)


def misbehave(how: str) -> str:
    """Hangs, crashes, fills memory or fails, as it is told; answers what it was told else."""
    if how == "hang":
        time.sleep(60)
    if how == "crash":
        os._exit(3)
    if how == "memory":
        bytearray(2**33)
    if how == "fail":
        raise ValueError(how)
    return how
