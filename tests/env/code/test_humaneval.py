"""HumanEval's 164 problems, where the machine has them beside the project: data of others, not shipped."""

import gzip
import json

import pytest

from benchmarks.code_judge import FILE, HUMANEVAL, broken
from env.code.judge import judge
from env.code.offer import CODE, CodeTasks
from env.code.problems import Problem
from env.offer import TaskSet
from env.sandbox import Sandbox

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HUMANEVAL is None, reason=f"{FILE} lies in no folder above the project"),
]


@pytest.fixture(scope="module")
def problems() -> dict[str, Problem]:
    """The problems that are made of the rows, by task id; every row's own solution was judged on the way."""
    assert HUMANEVAL is not None
    made = CODE.make_tasks(CodeTasks(rows=str(HUMANEVAL), num_train=124, num_held_out=20), 0)
    assert isinstance(made, TaskSet)
    assert not made.left_out
    rows = [json.loads(line)["task_id"] for line in gzip.decompress(HUMANEVAL.read_bytes()).splitlines()]
    return {rows[task.details["row"] - 1]: Problem.from_text(task.ground_truth) for task in made.tasks}


def test_all_reference_solutions_pass(problems: dict[str, Problem], sandbox: Sandbox) -> None:
    assert len(problems) == 164
    assert not [
        name for name, problem in problems.items() if not judge(problem, problem.reference, sandbox).success
    ]
    assert sum(bool(problem.public) for problem in problems.values()) > 80


def test_broken_solutions_fail(problems: dict[str, Problem], sandbox: Sandbox) -> None:
    passed = []
    for name, problem in problems.items():
        version, _ = broken(problem)  # that a bare process has refused
        if judge(problem, version, sandbox).success:
            passed.append((name, version))
    assert not passed
