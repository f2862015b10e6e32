"""The sandbox's attack corpus against the judge: as data, and as a program of assertions."""

import pytest

from env.code.judge import judge
from env.code.problems import Example, Problem
from env.sandbox import Sandbox
from tests.env.sandbox.corpus import programs

PLACES = dict.fromkeys(("FILE", "FOLDER", "PORT", "PID", "ROOT"), "0")
ATTACKS = programs(PLACES)
ON_VERDICTS = list(ATTACKS)[: list(ATTACKS).index("reads_a_file")]
"""Attacks that want to pass; the others want out, or to stop the machine."""
INPUTS = (0, 7, 19, 12345, 99999999, 271828)
TESTS = tuple(Example([n], sum(map(int, str(n)))) for n in INPUTS)
CHECK = "\n".join(f"assert solve({test.arguments[0]}) == {test.expected}" for test in TESTS)
AS_DATA, AS_ASSERTIONS = Problem("solve", TESTS[:2], TESTS[2:]), Problem("solve", program=CHECK)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (AS_DATA, ON_VERDICTS),
        pytest.param(AS_DATA, list(ATTACKS), marks=pytest.mark.slow),
        pytest.param(AS_ASSERTIONS, list(ATTACKS), marks=pytest.mark.slow),
    ],
    ids=["on verdicts", "all, data", "all, assertions"],
)
@pytest.mark.usefixtures("impatient")
def test_no_attack_passes(problem: Problem, names: list[str], sandbox: Sandbox) -> None:
    assert len(ON_VERDICTS) >= 40
    assert not [name for name in names if judge(problem, ATTACKS[name], sandbox).success]
    assert judge(problem, "def solve(n):\n    return sum(map(int, str(n)))\n", sandbox).success
