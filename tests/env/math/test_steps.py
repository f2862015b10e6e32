"""Verdicts on lines: status, place, words that give nothing away."""

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
