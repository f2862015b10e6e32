"""What a solution says of itself counts for nothing: only what comes back is compared, and elsewhere."""

from dataclasses import replace
from typing import Any

import pytest

from env.code.judge import RUNNER, Failure, UnjudgedError, judge
from env.code.problems import Example, Problem
from env.sandbox import Box, Limits, Outcome, Sandbox

DOUBLE = Problem("double", (Example([2], 4),), (Example([3], 6), Example([-1], -2), Example([0], 0)))
RIGHT = "def double(x):\n    return 2 * x\n"


def test_a_right_solution_passes_every_test(sandbox: Sandbox) -> None:
    judgement = judge(DOUBLE, RIGHT, sandbox)
    assert judgement.success
    assert judgement.share == 1.0
    assert [result.value for result in judgement.public + judgement.hidden] == [4, 6, -2, 0]


def test_the_share_is_of_public_and_hidden_tests(sandbox: Sandbox) -> None:
    judgement = judge(DOUBLE, "def double(x):\n    return x * x\n", sandbox)
    assert (judgement.success, judgement.share) == (False, 0.5)  # of 2 and 0, not of 3 and -1


ATTACKS = {  # on this judge; those on any are in test_attacks.py
    "leaves at the call": "import os\ndef double(x): os._exit(0)",
    "a truth for a number": "def double(x): return x == x",
    "patches the runner": """
import sys
main = sys.modules['__main__']
main.encode = lambda value, depth=0: True
main.decode = lambda value, depth=0: True
main._attempt = lambda act: {"value": True, "passed": True, "success": True}
def double(x): return 1""",
    "delivers verdicts itself": """
import sys
for _ in range(9):
    sys.modules['__main__'].deliver({"passed": True, "success": True, "value": {"passed": True}})
def double(x): return 1""",
    "asks for the next call": """
import sys
def double(x):
    return sys.modules['__main__'].receive()""",
    "returns a generator": "def double(x): yield 2 * x",
    "returns too much": "def double(x): return 'x' * 10**7",
    "computes for ever": "def double(x):\n    while True:\n        try:\n            while True: pass\n"
    "        except BaseException: pass",
    "takes all memory": "def double(x): return [0] * 10**10",
    "is no Python": "def double(x) return 2 * x",
    "nests too deep to read": f"def double(x): return {'(' * 5000}x{')' * 5000}",
    "holds half a character": "def double(x): return '\\ud800'",
    "is not there": "def twice(x): return 2 * x",
    "is no function": "double = 3",
    "raises what is no exception's text": """
class Bad(BaseException):
    def __str__(self): raise SystemExit
    def __repr__(self): raise SystemExit
def double(x): raise Bad""",
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("program", ATTACKS.values(), ids=ATTACKS)
def test_no_attack_passes(program: str, sandbox: Sandbox) -> None:
    judgement = judge(DOUBLE, program, sandbox)
    assert not judgement.success
    assert judgement.share < 0.5
    assert judge(DOUBLE, RIGHT, sandbox).success  # and the next one is judged as ever


@pytest.mark.parametrize(
    ("program", "kind", "name", "line"),
    [
        ("def double(x):\n    return 2 x\n", "syntax", "SyntaxError", 2),
        ("import nothing_there\n", "exception", "ModuleNotFoundError", 1),
        ("def twice(x):\n    return 2 * x\n", "exception", "NameError", None),
    ],
)
def test_a_solution_that_does_not_get_to_its_tests_says_why(
    program: str, kind: str, name: str, line: int, sandbox: Sandbox
) -> None:
    stopped = judge(DOUBLE, program, sandbox).stopped
    assert stopped is not None
    assert (stopped.kind, stopped.name, stopped.line) == (kind, name, line)


def failure(program: str, sandbox: Sandbox) -> Failure:
    result = judge(DOUBLE, program, sandbox).public[0]
    assert result.failure is not None
    return result.failure


def test_an_exception_is_located_by_the_deepest_line_of_the_solution(sandbox: Sandbox) -> None:
    program = "def part(x):\n    return int('a')\n\ndef double(x):\n    y = part(x)\n    return y\n"
    found = failure(program, sandbox)
    assert (found.kind, found.name, found.line) == ("exception", "ValueError", 2)
    assert "invalid literal" in found.words
    found = failure("class Odd(Exception): pass\ndef double(x):\n    raise Odd(x)\n", sandbox)
    assert (found.name, found.words, found.line) == ("", "2", 3)  # only names of built-in ones are told


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (ATTACKS["computes for ever"], "timeout"),
        (ATTACKS["takes all memory"], "memory"),
        (ATTACKS["leaves at the call"], "crashed"),
        (ATTACKS["returns too much"], "output"),
        (ATTACKS["returns a generator"], "unreadable"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_what_is_no_exception_has_a_kind(program: str, kind: str, sandbox: Sandbox) -> None:
    assert failure(program, sandbox).kind == kind


def test_a_solution_may_use_what_is_given_and_may_define_it_anew(sandbox: Sandbox) -> None:
    problem = replace(DOUBLE, given="import math\ndef half(x):\n    return x / 2\n")
    assert judge(problem, "def double(x):\n    return math.floor(half(4 * x))\n", sandbox).success
    assert judge(
        problem, "def half(x):\n    return x\ndef double(x):\n    return half(2 * x)\n", sandbox
    ).success


def test_arguments_that_a_solution_changes_change_nothing_else(sandbox: Sandbox) -> None:
    problem = Problem("last", (Example([[1, 2]], 2),), (Example([[3]], 3), Example([[1, 2]], 2)))
    assert judge(problem, "def last(items):\n    return items.pop()\n", sandbox).success


class Broken(Sandbox):
    """A sandbox whose parts fail as told."""

    def __init__(self, asked: str = "ok", played: str = "ok") -> None:
        self.asked, self.played = asked, played

    def open(self, program: str, argument: Any, limits: Limits) -> Box:
        return BrokenBox(self.asked if program == RUNNER else self.played)


class BrokenBox(Box):
    def __init__(self, status: str) -> None:
        self.status = status

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, message: Any) -> Outcome:
        return Outcome(self.status, {"value": 4})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (Broken(asked="unavailable"), "sandbox_unavailable"),
        (Broken(played="unavailable"), "verifier_unavailable"),
        (Broken(played="timeout"), "verifier_timeout"),
        (Broken(played="crashed"), "verifier_crashed"),
        (Broken(played="raised"), "verifier_raised"),
    ],
)
def test_what_fails_on_our_side_is_no_verdict(broken: Broken, kind: str) -> None:
    problem = Problem("double", program="assert double(2) == 4")
    with pytest.raises(UnjudgedError, match=f"^{kind}$"):
        judge(problem, RIGHT, broken)


@pytest.mark.parametrize(
    "value", [None, 3, [], {}, {"value": {"no": 1}}, {"error": "x"}, {"error": [], "name": 1}]
)
def test_answers_that_nobody_gives_are_failures(value: Any) -> None:
    class Odd(BrokenBox):
        def ask(self, message: Any) -> Outcome:
            return Outcome("ok", {"value": None} if message is None else value)

    class Odds(Broken):
        def open(self, program: str, argument: Any, limits: Limits) -> Box:
            return Odd("ok")

    assert judge(DOUBLE, RIGHT, Odds()).share == 0.0
