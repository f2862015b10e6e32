"""The project's own problems: enough tests, right solutions, slips that the hidden tests find."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks._faults import faults_in
from env.code.feedback import call_text
from env.code.judge import judge
from env.code.offer import CODE
from env.code.problems import Example, OwnProblem, Problem, own_problems
from env.code.scripted import solutions
from env.sandbox import Sandbox

OWN = own_problems()


def test_there_are_about_fifty_problems_and_no_cluster_is_cut_by_a_split() -> None:
    assert 45 <= len(OWN) == len({own.name for own in OWN})
    assert len({(own.cluster, own.split) for own in OWN}) == len({own.cluster for own in OWN})
    assert min(Counter(own.split for own in OWN).values()) >= 10
    assert {own.level for own in OWN} == {1, 2, 3}


@pytest.mark.parametrize("own", OWN, ids=lambda own: own.name)
def test_the_solution_passes_and_everything_wrong_fails_a_hidden_test(
    own: OwnProblem, sandbox: Sandbox
) -> None:
    problem = own.problem
    assert 2 <= len(problem.public) <= 3
    assert len(problem.hidden) >= 8
    assert not {str(test) for test in problem.public} & {str(test) for test in problem.hidden}
    right, *wrong = solutions(problem)
    assert judge(problem, right, sandbox).success
    assert own.slips
    assert wrong[2:] == list(own.slips)
    for solution in wrong:
        judgement = judge(problem, solution, sandbox)
        assert judgement.stopped or not all(result.passed for result in judgement.hidden), solution


HARMLESS = {
    "count_primes:2: 0 -> 1",
    "fibonacci:3: len(numbers) < count -> (len(numbers)) <= (count)",
    "from_roman:6: 0 -> 1",
    "longest_palindrome:4: 1 -> 2",
    "modes:2: 0 -> 1",
    "rail_fence:3: 1 -> 2",
    "rail_fence:6: rails > 1 -> (rails) >= (1)",
    "reverse_digits:3: 0 -> 1",
    "reverse_digits:3: number < 0 -> (number) <= (0)",
}
"""Slips of the hand that change nothing that is returned."""


@pytest.mark.slow
def test_hidden_tests_find_every_slip_of_the_hand(sandbox: Sandbox) -> None:
    passed = set()
    for own in OWN:
        hidden = replace(own.problem, public=())
        for fault in faults_in(own.problem.reference, own.name):
            if judge(hidden, fault.put_in(own.problem.reference), sandbox).success:
                passed.add(str(fault))
    assert passed == HARMLESS


def test_tasks_are_the_problems_of_each_split_in_an_order_by_the_seed() -> None:
    tasks = CODE.make_tasks(CODE.settings(), 0)
    assert isinstance(tasks, list)
    assert Counter(task.split for task in tasks) == Counter(own.split for own in OWN)
    assert len({task.task_id for task in tasks}) == len(OWN)
    other = CODE.make_tasks(CODE.settings(), 1)
    assert isinstance(other, list)
    assert [task.task_id for task in other] != [task.task_id for task in tasks]
    few = CODE.make_tasks(CODE.settings(num_train=3, num_held_out=2), 0)
    assert isinstance(few, list)
    assert Counter(task.split for task in few) == {"train": 3, "val": 2, "test": 2}
    for task in tasks:
        assert CODE.check_task is not None
        CODE.check_task(task)
        problem = Problem.from_text(task.ground_truth)
        assert f"def {problem.entry_point}(" in task.prompt[0]["content"]
        said = task.prompt[0]["content"]
        assert problem.reference.strip() not in said
        assert all(call_text(problem.entry_point, test) in said for test in problem.public)
        assert not any(f"{call_text(problem.entry_point, test)} ==" in said for test in problem.hidden)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[]", "no programming problem"),
        ("{}", "no programming problem"),
        ('{"entry_point": "f", "public": [], "hidden": [], "other": 1}', "other"),
        ('{"entry_point": "f(", "public": [], "hidden": [], "program": "assert f()"}', "name of a function"),
        ('{"entry_point": "f", "public": [], "hidden": []}', "no hidden test"),
    ],
)
def test_a_text_that_is_no_problem_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Problem.from_text(text)


@pytest.mark.parametrize(
    ("arguments", "comparison", "message"),
    [([1], "equal", "exact, approx, unordered"), (1, "exact", "allowed: a list"), ([{}], "exact", "encode")],
)
def test_a_test_that_cannot_be_run_is_refused(arguments: Any, comparison: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Example(arguments, 1, comparison)
