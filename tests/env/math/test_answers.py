"""Final answers: every hole of a verifier that is known is closed, on a corpus that is committed."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.math_answers import Pair, ours, pairs
from env.math.answers import Judgement, extract, judge
from env.math.quantities import quantity

PAIRS = pairs()


def nobody(gold: str, answer: str) -> bool:
    raise AssertionError(f"{gold} and {answer} need no opinion")


def test_the_corpus_is_large_and_mixed() -> None:
    assert len(PAIRS) >= 300
    assert len(set(PAIRS)) == len(PAIRS)
    assert min(Counter(pair.is_right for pair in PAIRS).values()) >= 150
    assert {"fraction", "percent", "unit", "interval", "list", "size", "formula", "none"} <= {
        p.kind for p in PAIRS
    }


@pytest.mark.parametrize("kind", sorted({pair.kind for pair in PAIRS}))
def test_no_answer_of_the_corpus_is_judged_wrongly(kind: str) -> None:
    assert [pair for pair in PAIRS if pair.kind == kind and ours(pair) is not pair.is_right] == []


@pytest.mark.parametrize("pair", [p for p in PAIRS if p.is_right and p.kind != "message"][::9], ids=str)
def test_gold_is_always_accepted_for_itself(pair: Pair) -> None:
    assert judge(pair.gold, pair.gold, nobody) == Judgement(True)


@pytest.mark.parametrize(
    ("gold", "answer", "wrong"),
    [
        ("2 feet", "24 inches", "25 inches"),
        ("1 yard", "3 feet", "4 feet"),
        ("1 mile", "5280 feet", "5000 feet"),
        ("1 inch", "25.4 mm", "25 mm"),
        ("2 minutes", "120 seconds", "200 seconds"),
        ("2 days", "48 hours", "24 hours"),
        ("1 week", "7 days", "5 days"),
        ("3 grams", "3000 mg", "300 mg"),
        ("2 kg", "2000 g", "200 g"),
        ("1 tonne", "1000 kg", "100 kg"),
        ("1 liter", "1000 ml", "100 ml"),
        (r"\frac{1}{6}", r"0.1\overline{6}", r"0.\overline{16}"),
    ],
)
def test_every_unit_has_its_size(gold: str, answer: str, wrong: str) -> None:
    assert judge(gold, answer, nobody) == judge(answer, gold, nobody) == Judgement(True)
    assert judge(gold, wrong, nobody) == Judgement(False, "unequal")


def test_an_answer_is_the_last_balanced_box_after_all_thoughts() -> None:
    assert extract(r"\boxed{\frac{1}{2}} or \boxed{ {3} } or \boxed{4") == "{3}"
    assert extract(r"<think>\boxed{1}</think> it is \boxed{2}") == "2"
    assert extract(r"\boxed{2} <think> but \boxed{1}") is None
    assert extract("so\n#### 72\n") is None
    assert extract("so\n#### 72\n", "####") == "72"
    assert extract(r"#### 72 \boxed{73}", "####") == "73"
    assert extract(r"\boxed{" * 99999) is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [("5 + 7", "form"), ("13", "unequal"), ("1" * 401, "too_long"), ("(", "form"), (r"\{" * 150, "form")],
)
def test_a_judgement_says_why_an_answer_is_not_right(answer: str, why: str) -> None:
    assert judge("12", answer, nobody) == Judgement(False, why)


def test_formulas_need_an_opinion_and_numbers_none() -> None:
    asked = []
    assert judge(
        r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", lambda *both: asked.append(both) or True
    ).is_right  # type: ignore[func-returns-value]
    assert len(asked) == 1


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=120), st.text(alphabet=r"12,./()[]{}\frac<=xe^-+% $", max_size=120))
def test_no_text_makes_a_judgement_raise(gold: str, answer: str) -> None:
    judge(gold, answer, lambda *_: False)
    judge(answer, gold, lambda *_: False)


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6), st.integers(-3, 3))
def test_notations_of_one_ratio_are_equal_and_its_neighbours_are_not(top: int, bottom: int, off: int) -> None:
    gold = rf"\frac{{{top}}}{{{bottom}}}"
    answer = f"{top + off}/{bottom}"
    assert judge(gold, answer, nobody).is_right == (off == 0)


@pytest.mark.parametrize(
    "text",
    ["5+7", "3*4", "2^2", "5!", "12 - 0", "12 = 12", "(12)", "12x", "1e99999", "1/0", "1 2", "3 fifths"],
)
def test_a_quantity_has_no_hidden_calculation(text: str) -> None:
    assert quantity(text) is None
