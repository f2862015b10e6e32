"""Programming problems: what a solution is called with, and what it should return."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self, get_args

from env.code.compare import Comparison
from env.code.values import decode

ARROW = " -> "
"""Between the arguments of a test, a JSON list, and what they should give, in a line of `own.toml`."""


@dataclass(frozen=True, slots=True)
class Example:
    """A test as data; `arguments` and `expected` are in the JSON of `values.encode`."""

    arguments: list[Any]
    expected: Any
    comparison: Comparison = "exact"

    def __post_init__(self) -> None:
        if self.comparison not in get_args(Comparison):
            known = ", ".join(get_args(Comparison))
            raise ValueError(f"a test compares by {self.comparison!r}; allowed: {known}")
        if not isinstance(self.arguments, list):
            raise ValueError(f"a test's arguments are {self.arguments!r}; allowed: a list")
        decode(self.arguments)
        decode(self.expected)


@dataclass(frozen=True, slots=True)
class Problem:
    """What grades a solution; none of it but the public examples is ever said to a policy."""

    entry_point: str  # the function that is called
    public: tuple[Example, ...] = ()  # that the prompt shows
    hidden: tuple[Example, ...] = ()
    program: str = ""  # hidden tests that are assertions: of `check(candidate)`, or of the function by name
    given: str = ""  # runs before a solution, and before the program: imports and functions of the prompt
    reference: str = ""  # a right solution; empty if none is known

    def __post_init__(self) -> None:
        if not self.entry_point.isidentifier():
            raise ValueError(f"entry_point is {self.entry_point!r}; allowed: the name of a function")
        if not (self.hidden or self.program):
            raise ValueError("has no hidden test, so it could not tell right from wrong")

    def to_text(self) -> str:
        """Returns it as JSON, for a task's `ground_truth`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the problem that `to_text` wrote; ValueError for any other text."""
        try:
            data = json.loads(text)
            tests = {name: tuple(Example(**test) for test in data[name]) for name in ("public", "hidden")}
            return cls(**{**data, **tests})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no programming problem: {error}") from None


@dataclass(frozen=True, slots=True)
class OwnProblem:
    """A problem of the project: what it says, and slips that its hidden tests must find."""

    name: str  # of the function
    split: str
    cluster: str  # problems that share an idea
    level: int  # 1 to 3
    signature: str
    statement: str
    problem: Problem
    slips: tuple[str, ...]  # solutions with a plausible mistake


@cache
def own_problems() -> tuple[OwnProblem, ...]:
    """Returns the problems of `own.toml`, in its order."""
    with Path(__file__).with_name("own.toml").open("rb") as file:
        return tuple(_own(**entry) for entry in tomllib.load(file)["problem"])


def _own(
    *,
    split: str,
    cluster: str,
    level: int,
    signature: str,
    statement: str,
    public: str,
    hidden: str,
    reference: str,
    slips: Sequence[str],
    compare: Comparison = "exact",
) -> OwnProblem:
    name = signature.removeprefix("def ").partition("(")[0]
    problem = Problem(name, _examples(public, compare), _examples(hidden, compare), reference=reference)
    return OwnProblem(name, split, cluster, level, signature, statement, problem, tuple(slips))


def _examples(text: str, comparison: Comparison) -> tuple[Example, ...]:
    """Returns the tests that lines such as `[[1, 2], 3] -> 6` stand for."""
    pairs = [line.split(ARROW) for line in text.splitlines() if line.strip()]
    return tuple(Example(json.loads(a), json.loads(b), comparison) for a, b in pairs)
