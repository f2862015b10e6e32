"""Verdicts on lines: status, place, words that give nothing away."""

import pytest

from env.math.steps import check_lines, verdicts

QUESTION = "Ada has 48 clips and sells half of them, then 24 more. How many did she sell?"


def statuses(text: str, question: str = QUESTION) -> list[tuple[str, str]]:
    return [(check.status, check.code) for check in check_lines(text, question)]


def test_each_line_has_its_own_verdict_at_its_own_characters() -> None:
    text = "She sold 48 / 2 = 24.\n\nThen 24 + 24 = 49 clips.\nSo:\n\\boxed{49}"
    checks = check_lines(text, QUESTION)
    assert [check.status for check in checks] == ["ok", "wrong", "unknown", "unknown"]
    assert [check.number for check in checks] == [1, 2, 3, 4]
    wrong = checks[1]
    assert text[wrong.start : wrong.end] == wrong.quote == "24 + 24 = 49"
    assert wrong.right == 48
    assert verdicts(checks)[1].message == "24 + 24 = 49 is false"
    assert all("48" not in word.message for word in verdicts(checks)[1:])


def test_annotations_are_claims_of_their_line() -> None:
    assert statuses("She sold 48/2 = <<48/2=24>>24 clips.\nIn all <<24+24=49>>49.") == [
        ("ok", ""),
        ("wrong", "false_equality"),
    ]


def test_an_annotation_says_what_its_chain_of_equalities_does() -> None:
    assert statuses("Half is 48 - 20 = 20 + 4 = <<48/2=24>>24.") == [("ok", "")]
    assert statuses("Half is 48 - 20 = 20 + 4 = 24.") == [("wrong", "false_equality")]


def test_a_number_from_nowhere_makes_a_true_line_unknown() -> None:
    assert statuses("24 + 24 = 48") == [("ok", "")]
    assert statuses("24 + 17 = 41") == [("unknown", "ungrounded")]
    assert statuses("24 + 24 = 48\n48 + 48 = 96") == [("ok", "")] * 2
    assert statuses("24 + 17 = 42") == [("wrong", "false_equality")]  # whatever its numbers are
    assert statuses("2 * 24 = 48 + 0 = 48") == [("ok", "")]


@pytest.mark.parametrize(
    ("question", "solution"),
    [
        (
            "y varies directly as x, and y = 10 when x = 2. What is y when x = 3?",
            "k = 5\ny = 5 * 3 = 15\ny = 15",
        ),
        ("What is the reflection of the line x = 2 in the y-axis?", "x = -2"),
        ("Tom has n = 5 marbles and buys 3 more. What is n now?", "n = 5 + 3 = 8"),
    ],
)
def test_a_value_of_the_question_may_be_of_another_case(question: str, solution: str) -> None:
    assert "wrong" not in [status for status, _ in statuses(solution, question)]
    assert statuses("2x = 14\nx = 6\nx = 8", "Solve 2x = 14.")[1] == ("wrong", "contradiction")


def test_modulo_problems_have_no_common_numbers() -> None:
    checks = check_lines("37 + 8 = 45\n45 + 9 = 54\n44 + 5 = 49", "37 + 8 + 95 + 5 (mod 100)", 100)
    assert [(check.status, check.code) for check in checks] == [
        ("ok", ""),
        ("unknown", "ungrounded"),
        ("unknown", "ungrounded"),
    ]


def test_thoughts_and_overlong_lines_are_not_judged_and_bullets_are_no_signs() -> None:
    assert statuses("<think>\n2 + 2 = 5, no\n</think>\n2 + 2 = 5")[-1][0] == "wrong"
    assert [status for status, _ in statuses("<think>\n2 + 2 = 5, no\n</think>\n2 + 2 = 4")][:2] == [
        "unknown"
    ] * 2
    assert statuses("2 + 2 = 5" + " " * 2000 + ".") == [("unknown", "")]
    assert [s for s, _ in statuses("- 48 / 2 = 24\n* 24 + 24 = 48\n1. 24 + 24 = 48\n2) 24 - 24 = 0")] == [
        "ok"
    ] * 4


def test_an_equation_of_the_solution_binds_its_symbol() -> None:
    found = statuses("2x + 4 = 24.\n2x = 20\nx = 12")
    assert [status for status, _ in found] == ["unknown", "ok", "wrong"]
    assert found[2][1] == "contradiction"
    found = statuses("If 2x + 4 = 24 then\n2x = 30")  # words touch it: it may be a case of several
    assert [status for status, _ in found] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("", "n = 1: 3 + 4 = 7\nn = 2: 3 + 8 = 11"),
        ("", "x = 1, y = 5\nx = 2, y = 7"),
        ("", "- x = 3\n- x = 5"),
        ("", "f(2) = 2^2 + 1 = 5\nf(3) = 3^2 + 1 = 10"),
        ("f(3) = 7 and f(4) = 9.", r"f\left(4\right) - f(3) = 2" "\nf(5) = 11"),
        ("", "(y-1)(y-2)(y-3) = 0\ny - 1 = 0\ny - 2 = 0"),
        ("Solve |x - 1| = 2.", "x - 1 = 2\nx - 1 = -2"),
        ("Solve x^2 - 4x + 2 = 0.", "x = 3.414\nx = 0.586"),
        ("It is 5 at x = 1 and 7 at x = 2.", "x = 2"),
        ("Solve 3x = 4.", "x = 1.33\nx = 1.3333"),
        ("Solve 3x = 2.", "x = 0.66"),
        ("Solve 2n + 1 = 7.", "n = 1: 2 * 1 + 1 = 3\nn = 3: 2 * 3 + 1 = 7"),
    ],
)
def test_cases_trials_function_values_and_roundings_contradict_nothing(question: str, text: str) -> None:
    assert [status for status, _ in statuses(text, question) if status == "wrong"] == []


def test_what_the_question_pins_down_is_contradicted() -> None:
    assert statuses("x = 2", "x^2 = 4 and 2x = 4") == [("ok", "")]
    assert statuses("x = -2", "x^2 = 4 and 2x = 4") == [("wrong", "contradiction")]
    assert statuses("x = 1.5", "Solve 3x = 4.") == [("wrong", "contradiction")]
