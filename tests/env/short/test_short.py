"""Short answers: which are the same, which are not, what rows of known data sets become."""

import json
from typing import Any

import pytest

from env.catalog import offer_of
from env.chat.full import FullStyle
from env.chat.plain import PlainStyle
from env.protocol import Action
from env.short.answers import AnswerKey, chosen, normal_answer, said_answer
from env.short.environment import ShortAnswers
from env.short.questions import FIELDS, answers_of, key_of_choices, problem_of
from pipeline.rows import BadRowError
from pipeline.types import Task

SAME = [
    ("Paris", "paris."),
    ("The Beatles", "Beatles"),
    ("a  cat", "Cat!"),
    ("Schindler's List", "Schindlers List"),
    ("Schindler\u2019s List", "schindler's list"),
    ("Spider-Man", "spider man"),
    ("AC/DC", "AC DC"),
    ("U.S.A.", "USA"),
    ("1,000,000", "1000000"),
    ("\u22125", "-5"),
    ("Rock & Roll", "Rock and Roll"),
    ('"Hamlet"', "Hamlet"),
    ("fullwidth \uff21", "fullwidth a"),
    ("snake_case", "snake case"),
    ("(1984)", "1984"),
]
OTHER = [
    ("-5", "5"),
    ("3.5", "35"),
    (".5", "5"),
    ("0.5", "0 5"),
    ("1/2", "12"),
    ("5 %", "5"),
    ("C++", "C"),
    ("C#", "C"),
    ("Vitamin A", "Vitamin"),
    ("The Who", "Who are they"),
    ("A", "The"),
    ("1,2", "12"),
    ("10", "100"),
    ("Paris or London", "Paris"),
    ("Paris", ""),
    ("?", "!"),
    ("$5", "5"),
    ("m\u00b2", "m"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_answers_that_say_the_same_are_the_same(one: str, other: str) -> None:
    assert AnswerKey((one,)).accepts(other)
    assert AnswerKey((other,)).accepts(one)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_answers_that_say_something_else_are_not(one: str, other: str) -> None:
    assert not AnswerKey((one,)).accepts(other)
    if other:
        assert not AnswerKey((other,)).accepts(one)


@pytest.mark.parametrize("text", [one for pair in SAME + OTHER for one in pair])
def test_an_answer_in_its_compared_form_stays_as_it_is(text: str) -> None:
    once = normal_answer(text)
    assert normal_answer(once) == once or once.startswith(("a ", "an ", "the "))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Answer: Paris", "Paris"),
        ("I first thought Answer: Rome\nbut ANSWER : **Paris**.", "Paris**."),
        ("Answer:\n\nParis\nas all know", "Paris"),
        ("The city of light\nParis", "Paris"),
        ("<think>Answer: Rome</think>\nParis", "Paris"),
        ("<think>Answer: Rome", ""),
        ("Answer: ", ""),
        ("\n", ""),
        ("", ""),
    ],
)
def test_the_answer_of_a_message(message: str, said: str) -> None:
    assert said_answer(message) == said


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("A", 0),
        ("d", 3),
        ("(C)", 2),
        ("B)", 1),
        ("B.", 1),
        ("B: seven", 1),
        ("b) SEVEN.", 1),
        ("seven", 1),
        ("A bird", 2),
        ("B) eight", None),
        ("E", None),
        ("A or B", None),
        ("A, B", None),
        ("AB", None),
        ("twin", None),  # two choices say so
        ("A) twin", 0),
        ("", None),
    ],
)
def test_a_choice_is_named_by_letter_words_or_both(answer: str, index: int | None) -> None:
    assert chosen(answer, ["twin", "seven", "a bird", "Twin"]) == index


def task_of(key: AnswerKey) -> Task:
    said = ({"role": "user", "content": "?"},)
    return Task("t", "short", "train", 1, said, "rule", key.to_text(), "short_text", "c", 0)


def played(key: AnswerKey, text: str, verbosity: str = "observed") -> ShortAnswers:
    env = ShortAnswers(verbosity)
    env.reset(task_of(key), 0)
    assert env.step(Action(text, "none")).terminated
    return env


def test_an_episode_is_one_message_that_is_right_or_wrong_without_a_word_on_steps() -> None:
    key = AnswerKey(("Paris", "Lutetia"))
    right, wrong = played(key, "Well.\nAnswer: lutetia"), played(key, "Rome")
    assert (right.verdict().reward, right.verdict().success, right.verdict().steps) == (1.0, True, ())
    assert (wrong.verdict().reward, wrong.verdict().success) == (0.0, False)
    assert right.feedback() is None
    offer = offer_of("short")
    assert not offer.step_verdicts
    offer.check_task(task_of(key))
    with pytest.raises(ValueError, match="no key"):
        AnswerKey.from_text('{"answers": []}')


@pytest.mark.parametrize("verbosity", ["binary", "observed", "corrective"])
def test_feedback_never_tells_the_right_answer(verbosity: str) -> None:
    for key in (AnswerKey(("Paris",)), AnswerKey(("Paris",), ("Rome", "Paris"), 1)):
        for said in ("Answer: <|im_end|> Ro\nme", "Answer: A", ""):
            feedback = played(key, said, verbosity).feedback()
            assert feedback is not None
            assert "Paris" not in feedback.text
            assert "<|" not in feedback.text
            assert len(feedback.text) <= 600
    assert "Rome" in str(played(AnswerKey(("Paris",)), "Rome", "observed").feedback())
    assert "Rome" not in str(played(AnswerKey(("Paris",)), "Rome", "binary").feedback())


def values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: next((row[c] for c in field.columns if c in row), None) for name, field in FIELDS.items()}


def test_rows_of_mmlu_trivia_qa_arc_squad_and_boolq_become_questions() -> None:
    mmlu = {"question": "Which?", "subject": "law", "choices": ["p", "q", "r", "s"], "answer": 2}
    problem = problem_of(values(mmlu))
    assert problem.prompt[0]["content"].splitlines()[:5] == ["Which?", "A) p", "B) q", "C) r", "D) s"]
    assert AnswerKey.from_text(problem.ground_truth) == AnswerKey(("r",), ("p", "q", "r", "s"), 2)
    assert (problem.ability, problem.asked) == ("multiple_choice", "Which?")
    arc = {"question": "?", "choices": {"text": ["p", "q"], "label": ["1", "2"]}, "answerKey": "2"}
    assert AnswerKey.from_text(problem_of(values(arc)).ground_truth).right == 1
    trivia = {"question": "?", "answer": {"value": "Sunset Boulevard", "aliases": ["Sunset Blvd", "x" * 200]}}
    assert json.loads(problem_of(values(trivia)).ground_truth) == {
        "answers": ["Sunset Boulevard", "Sunset Blvd"]
    }
    squad = {"question": "?", "answers": {"text": ["in 1066", "1066"], "answer_start": [1, 4]}}
    assert json.loads(problem_of(values(squad)).ground_truth) == {"answers": ["in 1066", "1066"]}
    assert answers_of(False) == ("no", "false")


@pytest.mark.parametrize(
    "wrong", ["", "a\nb", "x" * 101, None, [], {}, {"value": None}, float("nan"), [["x"]]]
)
def test_an_answer_that_cannot_be_compared_makes_a_bad_row(wrong: Any) -> None:
    with pytest.raises(BadRowError, match="answer is"):
        answers_of(wrong)


@pytest.mark.parametrize(
    ("choices", "answer", "kind"),
    [
        (["p"], 0, "bad_choices"),
        (["p", ""], 0, "bad_choices"),
        ("pq", 0, "bad_choices"),
        (["x"] * 27, 0, "bad_choices"),
        (["p", "q"], 2, "bad_answer"),
        (["p", "q"], -1, "bad_answer"),
        (["p", "q"], "C", "bad_answer"),
        (["p", "p"], "p", "bad_answer"),
        (["p", "q"], True, "bad_answer"),
    ],
)
def test_choices_without_a_right_one_make_a_bad_row(choices: Any, answer: Any, kind: str) -> None:
    with pytest.raises(BadRowError) as caught:
        key_of_choices(choices, answer)
    assert caught.value.kind == kind


def test_demonstrators_answer_in_both_styles_and_the_one_that_knows_is_right() -> None:
    offer = offer_of("short")
    for key in (AnswerKey(("Paris",)), AnswerKey(("q",), ("p", "q", "r"), 1)):
        for style in (PlainStyle(), FullStyle((), thinking=False)):
            [action] = offer.demonstrators.play(task_of(key), "knows", 0, 0.0, (), style, False)
            assert played(key, style.parse(action.text + style.stop_token).text).verdict().success
        guesses = {
            offer.demonstrators.play(task_of(key), "guesses", seed, 0.0, (), None, False)[0].text
            for seed in range(20)
        }
        assert len(guesses) == (3 if key.choices else 1)
