"""gsm8k and MATH as rows: made here, and the real ones where they lie beside the project."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.math_steps import ANNOTATION, altered, bare, first_wrong, is_right, solutions
from env.math.offer import MATH
from env.math.scripted import solution
from env.math.settings import MathTasks
from env.math.sources import worked_of
from env.math.steps import check_lines
from env.math.worked import Worked
from env.offer import TaskSet
from env.protocol import Action
from pipeline.errors import ConfigError
from pipeline.types import Task

GSM8K = [
    {
        "question": f"Natalia sold clips to {n} friends, then half as many in May. How many in all?",
        "answer": f"Natalia sold {n}/2 = <<{n}/2={n // 2}>>{n // 2} clips in May.\n"
        f"In all {n}+{n // 2} = <<{n}+{n // 2}={n + n // 2}>>{n + n // 2} clips.\n#### {n + n // 2}",
    }
    for n in range(40, 80, 2)
]
MATH_ROWS = [
    {
        "problem": f"What is the square root of ${2 * n * n}$?",
        "level": f"Level {1 + n % 5}",
        "type": "Algebra",
        "solution": rf"It is $\sqrt{{{2 * n * n}}} = \boxed{{{n}\sqrt{{2}}}}$.",
    }
    for n in range(2, 22)
]


def made(folder: Path, rows: list[dict[str, Any]]) -> TaskSet:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"environment": "math", "rows": str(path), "num_train": 10, "num_held_out": 5}
    return MATH.task_set(MathTasks.model_validate(given), 0)


def solved(task: Task, text: str) -> bool | None:
    env = MATH.env()
    env.reset(task, 0)
    env.step(Action(text, "none"))
    return env.verdict().success


def test_gsm8k_s_rows_become_tasks_with_worked_solutions(tmp_path: Path) -> None:
    tasks, left_out = made(tmp_path, GSM8K)
    assert len(tasks) == 20
    assert left_out == []
    for task in tasks:
        worked = Worked.of(task.details)
        text = solution(worked, "careful", Random(0), 0.0)
        assert "<<" not in text
        assert solved(task, text)
        assert solved(task, f"#### {task.ground_truth}")
        wrong = worked.text(worked.said({0: "7"}))
        assert wrong.splitlines()[0].endswith("= 7 clips in May.")
        assert "+7 = " in wrong  # the error carries on
        assert not solved(task, wrong)


def test_math_s_rows_give_answer_and_level(tmp_path: Path) -> None:
    tasks, _ = made(tmp_path, MATH_ROWS)
    assert {task.level for task in tasks} == {1, 2, 3, 4, 5}
    assert all(task.ground_truth.endswith(r"\sqrt{2}") for task in tasks)
    assert solved(tasks[0], rf"\boxed{{{tasks[0].ground_truth}}}")
    assert "boxed" in tasks[0].prompt[0]["content"]


def test_rows_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [*MATH_ROWS, {"problem": "What?", "solution": " ", "level": "1", "type": ""}]
    _, left_out = made(tmp_path, rows)
    assert [(row.row, row.kind) for row in left_out] == [(len(rows), "bad_answer")]


VERL = 'Let\'s think step by step and output the final answer after "####".'  # as its gsm8k rows say it
DAPO = (  # as the rows of DAPO-Math-17k say it
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put "
    'your answer on its own line after "Answer:".'
)


def messages_rows(wording: str, number: int = 20) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": wording.replace("{}", f"What is 17 * {n}?", 1)}],
            "reward_model": {"style": "rule", "ground_truth": str(17 * n)},
        }
        for n in range(2, 2 + number)
    ]


@pytest.mark.parametrize(
    ("wording", "place", "right", "wrong"),
    [
        (f"{{}} {VERL}", 'behind "####"', ["#### {}", "17 * 1 = 17\n####  **{}**."], ["{}", "Answer: {}"]),
        (
            DAPO,
            'behind "Answer:"',
            [
                "Answer: {}",
                "Answer: ${}$",
                "Answer: {}.",
                "**Answer:** {}",
                "**Answer: ${}$.**",
                "answer:\n{}",
            ],
            ["{}", "#### {}", "Answer: 1\n{}", "Answer: {}\nAnswer: 1", "Answer:"],
        ),
        (
            "{} Put your final answer within \\boxed{}.",
            "in \\boxed{}",
            [r"\boxed{{}}"],
            ["#### {}", "Answer: {}"],
        ),
    ],
)
def test_an_answer_is_read_where_the_row_s_own_messages_ask_for_it(
    tmp_path: Path, wording: str, place: str, right: list[str], wrong: list[str]
) -> None:
    rows = messages_rows(wording)
    task = made(tmp_path, rows).tasks[0]
    assert list(task.prompt) in [row["prompt"] for row in rows]
    for text in [*right, r"\boxed{{}}"]:
        assert solved(task, text.replace("{}", task.ground_truth)), text
    for text in wrong:
        assert not solved(task, text.replace("{}", task.ground_truth)), text
    env = MATH.env()
    env.reset(task, 0)
    env.step(Action("It is so.", "none"))
    feedback = env.feedback()
    assert feedback is not None
    assert feedback.text == f"There is no answer {place}."


@pytest.mark.parametrize("wording", ["{}", "Question: {}\nAnswer:", "{} End with <answer> </answer>."])
def test_messages_that_ask_for_no_answer_that_is_read_are_left_out_and_stop_a_table_of_them(
    tmp_path: Path, wording: str
) -> None:
    bad = messages_rows(wording, 8)
    _, left_out = made(tmp_path, [*messages_rows(f"{{}} {VERL}"), *bad])
    assert {row.kind for row in left_out if row.row > 20} == {"no_answer_form"}
    with pytest.raises(ConfigError, match=r"8 of 8 rows .*no_answer_form, row 1: .* allowed: .*Answer"):
        made(tmp_path, bad)


def test_a_demonstration_gives_its_answer_where_the_messages_ask_for_it(tmp_path: Path) -> None:
    for wording, ending in ((f"{{}} {VERL}", "\n#### "), (f"{{}} {VERL} In \\boxed{{}}.", "\n\\boxed{")):
        rows = [{**GSM8K[i], **row} for i, row in enumerate(messages_rows(wording))]
        for row in rows:
            del row["reward_model"]
        task = made(tmp_path, rows).tasks[0]
        text = solution(Worked.of(task.details), "careful", Random(0), 0.0)
        assert ending in text
        assert solved(task, text)


def test_a_percentage_that_is_asked_for_is_one(tmp_path: Path) -> None:
    rows = [{"question": f"What percent of {n} is {n}?", "answer": "100"} for n in range(1, 21)]
    task = made(tmp_path, rows).tasks[0]
    assert task.ground_truth == "100%"
    assert solved(task, r"\boxed{100\%}")
    assert solved(task, r"\boxed{100}")
    assert not solved(task, r"\boxed{1}")
    rows = [
        {"question": f"If 50% of {2 * n} hens lay, how many lay?", "answer": str(n)} for n in range(1, 21)
    ]
    task = made(tmp_path, rows).tasks[0]
    assert solved(task, rf"\boxed{{{task.ground_truth} \text{{ hens}}}}")


def test_a_text_without_calculations_is_no_worked_solution() -> None:
    assert worked_of("It is so.\n#### 5", "5") is None


@pytest.fixture(scope="module")
def gsm8k() -> list:
    try:
        return solutions("train")[::40]
    except SystemExit as missing:
        pytest.skip(str(missing))


def test_no_right_calculation_of_gsm8k_is_called_wrong(gsm8k: list) -> None:
    wrong = []
    for row in gsm8k:
        for line, check in zip(row.text.split("\n"), check_lines(row.text, row.question), strict=True):
            right = [is_right(found[1], found[2]) for found in ANNOTATION.finditer(line)]
            if check.status == "wrong" and right and False not in right:
                wrong.append(line)
    assert wrong == []


def test_an_altered_result_of_gsm8k_is_found_where_it_is(gsm8k: list) -> None:
    rng = Random(0)
    made = [(row, change) for row in gsm8k if (change := altered(row, rng)) is not None]
    hits, seen = 0, 0
    for row, (text, number) in made:
        check = first_wrong(text, row.question)
        hits += check is not None and check.number == number + 1
        check = first_wrong(bare(text), row.question)
        seen += check is not None and check.number == number + 1
    assert hits >= 0.95 * len(made)
    assert seen >= 0.6 * len(made)
