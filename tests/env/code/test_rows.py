"""Rows as HumanEval and MBPP have them become problems, or are left out with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from env.code.judge import judge
from env.code.offer import CODE, CodeTasks
from env.code.problems import Problem
from env.code.rows import FIELDS, problem_of
from env.code.values import decode
from env.offer import TaskSet
from env.sandbox import Sandbox
from pipeline.rows import BadRowError

COMPLETION = {
    "task_id": "Own/0",
    "prompt": '''import math

def half(x):
    return x / 2

def area(r: float) -> float:
    """ Area of a circle.
    >>> area(0.0)
    0.0
    >>> area(1)
    3.14
    >>> area("x")
    Traceback (most recent call last):
    """
''',
    "entry_point": "area",
    "canonical_solution": "    return half(2 * math.pi * r * r)\n",
    "test": """
METADATA = {}
def check(candidate):
    assert abs(candidate(2) - 2 * half(4 * math.pi)) < 1e-6
    assert candidate(0) == 0
""",
}
LISTED = {
    "task_id": 7,
    "text": "Write a function to add three to a number.",
    "code": "def helper(x):\n    return x\ndef add_three(x):\n    return helper(x) + 3",
    "test_setup_code": "import math",
    "test_list": ["assert add_three(1) == 4", "assert add_three(2) == 5", "assert add_three(-3) == 0"],
}


def row(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns the fields of a row, as a reader of rows finds them by default."""
    values = values | changes
    return {
        name: next((values[c] for c in field.columns if c in values), None) for name, field in FIELDS.items()
    }


def test_a_function_to_complete_brings_what_its_prompt_defines(sandbox: Sandbox) -> None:
    made = problem_of(row(COMPLETION))
    problem = Problem.from_text(made.ground_truth)
    assert problem.entry_point == "area"
    assert problem.given.strip().endswith("return x / 2")
    assert [decode(test.arguments) for test in problem.public] == [
        [0.0]
    ]  # its own 3.14 is not what it returns
    assert COMPLETION["prompt"].strip() in made.prompt[0]["content"]
    assert "candidate" not in made.prompt[0]["content"]
    assert judge(problem, "def area(r):\n    return half(2 * math.pi * r * r)\n", sandbox).success
    assert not judge(
        problem, "def half(x):\n    return x\ndef area(r):\n    return math.pi\n", sandbox
    ).success


def test_of_listed_assertions_the_first_is_shown(sandbox: Sandbox) -> None:
    made = problem_of(row(LISTED))
    problem = Problem.from_text(made.ground_truth)
    said = made.prompt[0]["content"]
    assert problem.entry_point == "add_three"
    assert "add_three(1) == 4" in said
    assert "add_three(2)" not in said
    judgement = judge(problem, "def add_three(x):\n    return x + 3 if x > 0 else 1\n", sandbox)
    assert [result.passed for result in judgement.public + judgement.hidden] == [True, True, False]


def test_messages_stay_as_they_are(sandbox: Sandbox) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write add_three."}]
    made = problem_of(row(LISTED, text=messages))
    assert list(made.prompt) == messages
    problem = Problem.from_text(made.ground_truth)
    assert problem.entry_point == "add_three"
    assert not problem.public  # which feedback would quote, though the messages do not
    assert problem.program.count("assert") == 3


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"test_list": []}, "no_tests"),
        ({"test_list": [3]}, "bad_tests"),
        ({"code": 3}, "bad_reference"),
        ({"test_list": ["assert add_three(1) =="]}, "bad_tests"),
        ({"test_list": ["assert other(1) == 4"]}, "no_entry_point"),
        ({"test_list": ["assert add_three(1) == 4"]}, "no_problem"),
        ({"test_list": ["assert add_three(1) == 4", "assert add_three(2) == 6"]}, "reference_fails"),
        ({"test_list": ["assert add_three(1) == 4", "assert add_three(object()) == 6"]}, "reference_fails"),
        ({"text": " "}, "bad_prompt"),
        ({"text": [{"role": "assistant", "content": "hi"}]}, "bad_prompt"),
        ({"code": "def add_three(x): return x + 3 # \0"}, "bad_tests"),
        ({"code": "def add_three(x) return 1"}, "bad_tests"),
    ],
)
def test_a_row_that_cannot_grade_is_left_out(changes: dict[str, Any], kind: str, sandbox: Sandbox) -> None:
    with pytest.raises(BadRowError) as refused:
        problem_of(row(LISTED, **changes))
    assert refused.value.kind == kind


def test_a_file_of_rows_makes_tasks_and_bad_rows_are_counted(tmp_path: Path, sandbox: Sandbox) -> None:
    rows = [row | {"text": f"{row['text']} {i}"} for i, row in enumerate([LISTED] * 5)]
    rows[1] |= {"test_list": ["assert add_three(1) == 4", "assert add_three(1) == 5"]}
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = CodeTasks(rows=str(path), num_train=2, num_held_out=1)
    made = CODE.make_tasks(settings, 0)
    assert isinstance(made, TaskSet)
    assert [task.split for task in made.tasks] == ["train", "train", "val", "test"]
    assert [(row.row, row.kind) for row in made.left_out] == [(2, "reference_fails")]
    assert CODE.check_task is not None
    for task in made.tasks:
        CODE.check_task(task)
