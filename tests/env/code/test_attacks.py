"""The sandbox's attack corpus against the judge: as data, and as a program of assertions."""

import pytest

from env.code.judge import judge
from env.code.problems import Example, Problem
from env.sandbox import Sandbox
from tests.env.sandbox.corpus import programs

PLACES = dict.fromkeys(("FILE", "FOLDER", "PORT", "PID", "ROOT"), "0")
INPUTS = (0, 7, 19, 12345, 99999999, 271828)
TESTS = tuple(Example([n], sum(map(int, str(n)))) for n in INPUTS)
CHECK = "\n".join(f"assert solve({test.arguments[0]}) == {test.expected}" for test in TESTS)
PROBLEMS = {"data": Problem("solve", TESTS[:2], TESTS[2:]), "assertions": Problem("solve", program=CHECK)}


@pytest.mark.parametrize(
    "problem", [PROBLEMS["data"], pytest.param(PROBLEMS["assertions"], marks=pytest.mark.slow)], ids=PROBLEMS
)
@pytest.mark.usefixtures("impatient")
def test_no_attack_passes(problem: Problem, sandbox: Sandbox) -> None:
    attacks = programs(PLACES)
    assert len(attacks) >= 60
    judged = {name: judge(problem, source, sandbox) for name, source in attacks.items()}
    assert not [name for name, judgement in judged.items() if judgement.success]
    assert judge(problem, "def solve(n):\n    return sum(map(int, str(n)))\n", sandbox).success
