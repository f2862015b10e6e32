"""Test programs: they see data, never the solution, and each of their assertions counts by itself."""

import pytest

from env.code.judge import UnjudgedError, judge
from env.code.problems import Example, Problem
from env.sandbox import Sandbox


def shares(problem: Problem, solution: str, sandbox: Sandbox) -> tuple[float, bool]:
    judgement = judge(problem, solution, sandbox)
    return judgement.share, judgement.success


CHECK = """
METADATA = {}
def check(candidate):
    assert candidate(2) == 4
    assert candidate(3) == 6, "three"
    assert abs(candidate(x=0.5) - 1.0) < 1e-6
    assert True, "always"
"""
RIGHT = "def double(x):\n    return 2 * x\n"


def test_each_assertion_counts_but_one_of_a_constant(sandbox: Sandbox) -> None:
    problem = Problem("double", program=CHECK)
    assert shares(problem, RIGHT, sandbox) == (1.0, True)
    assert shares(problem, "def double(x):\n    return x + 2\n", sandbox) == (1 / 3, False)


def test_assertions_in_loops_and_of_results_that_were_kept_are_played(sandbox: Sandbox) -> None:
    program = """
import random
def check(candidate):
    for _ in range(5):
        x = random.randint(0, 100)
        result = candidate(x)
        assert result % 2 == 0
        assert result == x + x
    first = candidate(1)
    assert candidate(first) == 4
    assert candidate(candidate(candidate(2))) == 16
"""
    assert shares(Problem("double", program=program), RIGHT, sandbox) == (1.0, True)
    share, success = shares(Problem("double", program=program), "def double(x):\n    return 4\n", sandbox)
    assert 0 < share < 1
    assert not success


def test_an_exception_fails_its_assertion_and_success_whatever_the_test_makes_of_it(sandbox: Sandbox) -> None:
    raising = "def double(x):\n    if x == 3: raise ValueError\n    return 2 * x\n"
    assert shares(Problem("double", program=CHECK), raising, sandbox) == (2 / 3, False)
    for program in (
        "r = double(3)\nassert r is not None",
        "r = double(3)\nassert not isinstance(r, list)",
        "try:\n    double(3)\nexcept ValueError: pass\nassert double(1) == 2",
    ):
        assert not shares(Problem("double", program=program), raising, sandbox)[1]


def test_what_comes_after_the_programs_own_failure_is_lost(sandbox: Sandbox) -> None:
    program = "assert double(1) == 2\nfirst = double(2)[0]\nassert double(3) == 6\nassert double(4) == 8"
    assert shares(Problem("double", program=program), RIGHT, sandbox) == (1 / 3, False)


@pytest.mark.parametrize(
    "program", ["", "pass", "assert True", "def check(candidate):\n    return True", "assert double(2) == 5"]
)
def test_a_program_that_tests_nothing_passes_nobody(program: str, sandbox: Sandbox) -> None:
    assert not shares(Problem("double", program=program or "\n"), RIGHT, sandbox)[1]


def test_a_solution_that_defines_the_tests_helper_anew_does_not_pass(sandbox: Sandbox) -> None:
    given = "def poly(xs, x):\n    return sum(a * x**i for i, a in enumerate(xs))\n"
    program = "def check(candidate):\n    assert abs(poly([-2, 1], candidate([-2, 1]))) < 1e-6"
    problem = Problem("zero", program=program, given=given)
    forged = "def poly(xs, x):\n    return 0\ndef check(candidate):\n    pass\ndef zero(xs):\n    return 7\n"
    assert shares(problem, "def zero(xs):\n    return -xs[0] / xs[1]\n", sandbox) == (1.0, True)
    assert shares(problem, forged, sandbox) == (0.0, False)


def test_a_result_that_equals_everything_reaches_the_tests_as_plain_data(sandbox: Sandbox) -> None:
    forged = """
class Any(int):
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    def __sub__(self, other): return self
    def __abs__(self): return self
    __hash__ = int.__hash__
def double(x): return Any(1)
"""
    assert shares(Problem("double", program=CHECK), forged, sandbox)[0] <= 1 / 3  # abs(1 - 1.0) is 0


def test_tests_that_end_only_with_what_a_solution_returns_fail_it(sandbox: Sandbox, impatient: None) -> None:
    problem = Problem(
        "double",
        (Example([1], 2),),
        program="assert sum(1 for _ in range(double(2))) == 4\nassert double(3) == 6\nassert double(4) == 8",
    )
    assert shares(problem, RIGHT, sandbox) == (1.0, True)
    endless = "def double(x):\n    return 2 * x if x == 1 else 10**12\n"
    assert shares(problem, endless, sandbox) == (1 / 4, False)
    with pytest.raises(UnjudgedError, match="verifier_timeout"):
        judge(Problem("double", program="while True: pass"), RIGHT, sandbox)


def test_calls_that_each_need_the_last_result_are_played_to_the_end(sandbox: Sandbox) -> None:
    program = "x = 1\nfor _ in range(20): x = double(x)\nassert x == 2**20"
    assert shares(Problem("double", program=program), RIGHT, sandbox) == (1.0, True)


def test_what_a_test_program_changes_does_not_outlive_it(sandbox: Sandbox) -> None:
    patching = "import math, random\nmath.isclose = random.randint = None\nassert double(1) == 2"
    assert shares(Problem("double", program=patching), RIGHT, sandbox) == (1.0, True)
    program = "import math, random\nx = random.randint(0, 9)\nassert math.isclose(double(x), 2 * x)"
    assert shares(Problem("double", program=program), RIGHT, sandbox) == (1.0, True)


def test_tests_that_are_never_the_same_are_no_verdict(sandbox: Sandbox) -> None:
    program = "import os\nassert double(int.from_bytes(os.urandom(8), 'big')) >= 0"
    with pytest.raises(UnjudgedError, match="tests_not_repeatable"):
        judge(Problem("double", program=program), RIGHT, sandbox)
