"""What a text says of itself: names that nothing defines, no false alarms, and where a function returns."""

import pytest

from env.code.problems import own_problems
from env.code.static import look

DEFINED = (
    """
import os.path as places, re
from collections import *
from math import sqrt as root
""",
    """
import math
from typing import List
limit: int = 3
def f(x, *rest, y=limit, **named):
    global counted
    counted = sum(n for row in x for n in row if (last := n))
    try:
        with open(math.__file__) as file, file as again:
            for i, (a, b) in enumerate(zip(rest, named)): pass
    except (ValueError, OSError) as error:
        print(error, again, i, a, b, last)
    match x:
        case {"k": k, **others}: return k, others
        case [first, *tail] | (first, tail) if tail: return first
        case int() as whole: return whole
    def inner():
        nonlocal y
        y += 1
        return later(y)
    return [inner, lambda z: z + counted, helper]
def later(x: "Undefined") -> List[int]:
    return __name__
class Thing:
    size = 1
    def __init__(self): self.size = Thing.size
    def copy(self): return __class__()
    both = [size, size]
helper = Thing
del limit
""",
    "def f(x):\n    exec('y = 1')\n    return y\n",
)


@pytest.mark.parametrize("text", DEFINED)
def test_nothing_is_said_of_names_that_something_defines(text: str) -> None:
    assert look({"solution": text, "given": "", "entry_point": "f"})["undefined"] == []


def test_no_own_solution_has_a_name_that_nothing_defines() -> None:
    for own in own_problems():
        for text in (own.problem.reference, *own.slips):
            assert look({"solution": text, "given": "", "entry_point": own.name})["undefined"] == []


def test_names_that_nothing_defines_are_found_wherever_they_are_used() -> None:
    text = (
        "def f(x):\n    return [one(n) for n in x]\nclass C:\n    two = three\nfour.g()\nown = lambda: five\n"
    )
    found = look({"solution": text, "given": "def given_one(): pass", "entry_point": "f"})["undefined"]
    assert found == [[2, "one"], [4, "three"], [5, "four"], [6, "five"]]
    assert (
        look({"solution": "given_one()", "given": "def given_one(): pass", "entry_point": "f"})["undefined"]
        == []
    )


def test_a_function_s_own_returns_are_found() -> None:
    text = """
def f(x):
    def g():
        return 1
    if x:
        return g
    return [lambda: 2]
def f(x):
    for y in x:
        return y
"""
    found = look({"solution": text, "given": "", "entry_point": "f"})
    assert (found["returns"], found["defined"]) == ([10], 8)
    assert look({"solution": "f = 3", "given": "", "entry_point": "f"}) == {
        "undefined": [],
        "returns": [],
        "defined": None,
    }


def test_a_text_that_cannot_be_parsed_says_nothing() -> None:
    assert look({"solution": "def f(", "given": "", "entry_point": "f"}) == {}
    assert look({"solution": "x = " + "-" * 10**5 + "1", "given": "", "entry_point": "f"}) == {}
