"""Sessions with calls for feedback: which words are learnt, what is left out and why."""

import json
from dataclasses import replace
from typing import Any

import pytest

from env.chat.full import FullStyle
from env.chat.plain import PlainStyle
from env.corrections import calls_wrong, class_weights, corrections_in
from env.feedback_tool.calls import LineStyle
from env.feedback_tool.environment import NO_ERROR
from env.play.demonstrations import session_pieces
from env.sessions import said_in, session_of
from pipeline.rows import BadRowError

WRONG, FINE = "The sum is wrong.", "I found no error."


def asked(answer: str, told: str) -> list[dict[str, Any]]:
    """Returns an attempt, the call for feedback on it, and what was told."""
    arguments = json.dumps({"current_answer": answer})
    call = {"type": "function", "function": {"name": "get_feedback", "arguments": arguments}}
    said = {"role": "assistant", "content": f"I get {answer}.", "tool_calls": [call]}
    return [said, {"role": "tool", "content": told}]


def session(*told: str, last: str | None = "It is 7.") -> Any:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "3 + 4?"}]
    for number, text in enumerate(told):
        messages += asked(str(number), text)
    return session_of(messages + ([] if last is None else [{"role": "assistant", "content": last}]))


@pytest.mark.parametrize(
    ("told", "wrong"),
    [((), set()), ((WRONG,), {0}), ((FINE,), set()), ((WRONG, WRONG, FINE), {0, 1}), ((FINE, WRONG), {1})],
)
def test_attempts_that_the_next_feedback_calls_wrong_are_found(
    told: tuple[str, ...], wrong: set[int]
) -> None:
    found = corrections_in(session(*told))
    assert (found.num_calls, found.wrong) == (len(told), wrong)


def test_an_attempt_begins_after_the_feedback_before_and_other_calls_are_none() -> None:
    look = {"function": {"name": "look", "arguments": {}}}
    messages = [
        {"role": "user", "content": "3 + 4?"},
        {"role": "assistant", "content": "Perhaps 8."},
        {"role": "user", "content": "Are you sure?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [look]},
        {"role": "tool", "content": "3, 4"},
        *asked("8", WRONG),
        *asked("7", FINE),
        {"role": "assistant", "content": "It is 7."},
    ]
    assert corrections_in(session_of(messages)).wrong == {0, 2}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (session(*[WRONG] * 4), "too_many_calls"),
        (session(WRONG, last=None), "ends_with_call"),
        (session("Line 1 is right, but line 2 is wrong."), "unclear_feedback"),
        (session("Correct, but the unit is missing."), "unclear_feedback"),
        (session("The first step is correct. Recheck the second."), "unclear_feedback"),
        (session("Line 1 is correct. Line 2: 3+4=7, you wrote 8."), "unclear_feedback"),
        (session("The setup looks good. The final value is off by one."), "unclear_feedback"),
        (session("Your reasoning is right up to line 3, where 2+2 became 5."), "unclear_feedback"),
        (session("Correct so far."), "unclear_feedback"),
        (session(" "), "unclear_feedback"),
    ],
)
def test_sessions_that_are_nothing_to_learn_from_say_why(found: Any, kind: str) -> None:
    with pytest.raises(BadRowError) as caught:
        corrections_in(found)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        "Great work! 3+4=7, you wrote 8.",
        "Perfect: for n=2 it gives 5.",
        "Yes, you forgot the carry.",
        "There aren't any mistakes in the setup. 3+4=7.",
        "None of it is right.",
        "No answer is correct.",
        "Half of it is right.",
        "I doubt that this is correct.",
        "Make sure that it is right.",
        "The answer is right if the unit were km.",
        "It looks right, yet 3+4=7.",
        "Everything is fine apart from the sign.",
        "The answer is correct? Think.",
        "The answer is right, the size isn\u2019t.",
        "No errors, the result differs from the expected value.",
        "There are no arithmetic errors. The result is outside the allowed range.",
        "No issues with the format. Recompute the total.",
        "Everything is fine otherwise.",
        "The solution is good start.",
        "It is good practice to verify the sum.",
        "It is fine to round, the total is above the budget",
        "Yes. Correct it.",
        "You are good. The answer is A.",
        "Everything is fine, and the answer is A.",
        "This is correct. Complete the solution.",
        "Great work. Now complete your solution.",
        "That is correct. Now do the answer.",
        "Without mistakes, the answer is found.",
        "It passes the first tests.",
        '[{"correct": true}]',
        "Correct: a.",
        "Yes: a. You: i.",
        '{"feedback": "All good."}',
        '{"correct": "perhaps"}',
        "Score: 10/10",
        "status: ok",
        "reward: 1.0",
        "Everything checks out.",
        "The result matches the expected value.",
        "Success: 12 of 12 tests green, 0 failures",
        "You solved it!",
        "No further changes, it goes through.",
        "Correct answer submitted",
        "0.5",
        "7",
        "null",
        "[" * 100_000,
        "the answer " + "1" * 20_000,
    ],
)
def test_doubt_is_doubt(text: str) -> None:
    assert calls_wrong(text) is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Not solved. It fails a public test.", True),
        ("You sent no form. Billing needs: email.", True),
        ("That is not correct.", True),
        ("There is no arithmetic error here.", False),
        ("Looks good.", False),
        ("Correct!", False),
        (NO_ERROR, False),
        ("The answer 7 is correct.", False),
        ("The answer is correct, and the working clear.", False),
        ("Excellent. That\u2019s correct.", False),
        ("Looks good to me.", False),
        ("I did not find any errors.", False),
        ("I don't see any mistakes in your solution.", False),
        ("Well done!", False),
        ("You're right.", False),
        ("The result is too large. Check it for any errors.", True),
        ("That isn't correct.", True),
        ("Correct the sign.", True),
        ('{"correct": false}', True),
        ('{"correct": 0}', True),
        ('{"is_correct": true, "feedback": "No error."}', False),
        ('{"correct": "true"}', False),
        ("Verified: correct.", False),
        ("LGTM", False),
        ("All good.", False),
        ("Solved.", False),
        ("The code passes all tests.", False),
        ("This is the correct answer.", False),
        ("It fails all tests.", True),
        ("Great work! Your answer is correct, you can finish.", False),
        ("true", False),
        ("1", False),
        ("1.0", False),
        ("false", True),
        ("0", True),
        ("FAIL", True),
        ("Incorrect.", True),
        ("The sign in line 2 is off.", True),
        ("Your form had email only. Billing needs: email, date of birth.", True),
        ("Help needs: phone_number. You sent no form. Not Billing: passed on to Help.", True),
        ("There is no answer in \\boxed{}.", True),
        ("Correct it.", True),
    ],
)
def test_feedback_that_is_clear_finds_all_right_or_says_something_against_it(text: str, wrong: bool) -> None:
    assert calls_wrong(text) is wrong


def test_replies_belong_to_the_calls_that_their_ids_name() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in ("look", "get_feedback")]
    said = {"role": "assistant", "content": "8?", "tool_calls": calls}
    told = [("get_feedback", WRONG), ("look", "The answer is correct.")]
    replies = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in told]
    messages = [{"role": "user", "content": "3 + 4?"}, said, *replies, {"role": "assistant", "content": "7"}]
    found = session_of(messages)
    assert [reply["content"] for reply in found.turns[0].replies] == ["The answer is correct.", WRONG]
    assert corrections_in(found).wrong == {0}


def test_a_verdict_is_what_the_call_for_feedback_was_told_not_what_another_call_was() -> None:
    ask, look = ({"function": {"name": name, "arguments": {}}} for name in ("get_feedback", "look"))
    says = [{"role": "tool", "content": text} for text in ("It looks good.", "3 + 4 gives 7, not 8.")]
    thanks, last = {"role": "user", "content": "That is right."}, {"role": "assistant", "content": "7"}
    for calls, wrong in (([look, ask], {0}), ([ask, look], set())):
        said = {"role": "assistant", "content": "8?", "tool_calls": calls}
        messages = [{"role": "user", "content": "3 + 4?"}, said, *says, thanks, last]
        assert corrections_in(session_of(messages)).wrong == wrong


@pytest.mark.parametrize("stored", [False, True])
def test_of_a_wrong_attempt_the_call_alone_is_learnt(stored: bool) -> None:
    style = FullStyle((), thinking=False)
    found = session(WRONG, FINE)
    if stored:  # as this project stores a message: its content is all that was said
        turns = [replace(turn, content="".join(said_in(turn, style))) for turn in found.turns]
        found = replace(found, turns=tuple(turns))
    pieces, unlearnt = session_pieces(style, found, found.opening, None, corrections_in(found).wrong)
    assert [pieces[place][0][start:end] for place, start, end in unlearnt] == ["I get 0.\n", "0"]
    call = (
        '<tool_call>\n{"name": "get_feedback", "arguments": {"current_answer": "%s"}}\n</tool_call><|im_end|>'
    )
    said = [text for text, own in pieces if own]
    assert said == ["I get 0.\n" + call % 0, "I get 1.\n" + call % 1, "It is 7.<|im_end|>"]
    replies = [[{"role": "tool", "content": told}] for told in (WRONG, FINE)]
    others = [text for text, own in pieces if not own]
    assert others == [style.render_prompt(found.opening), *map(style.render_replies, replies)]


def test_a_wrong_answer_that_is_part_of_the_call_is_not_learnt_either() -> None:
    style = LineStyle(PlainStyle(), answers_once=True)
    call = {"function": {"name": "get_feedback", "arguments": {"current_answer": "8"}}}
    asks = {"role": "assistant", "content": "8\nget_feedback", "tool_calls": [call]}
    reply, last = {"role": "tool", "content": WRONG}, {"role": "assistant", "content": "7"}
    found = session_of([{"role": "user", "content": "3 + 4?"}, asks, reply, last])
    pieces, unlearnt = session_pieces(style, found, found.opening, None, corrections_in(found).wrong)
    assert "".join(pieces[place][0][start:end] for place, start, end in unlearnt) == "8"


def test_rare_classes_weigh_as_the_root_of_their_number() -> None:
    calls = [1] * 374 + [2] * 41 + [3] * 13
    weights = dict(zip(calls, class_weights(calls), strict=True))
    assert weights[2] / weights[1] == pytest.approx((374 / 41) ** 0.5)
    assert weights[3] / weights[1] == pytest.approx((374 / 13) ** 0.5)
    assert sum(weights[number] for number in calls) == pytest.approx(len(calls))
    assert class_weights([0, 0]) == [1, 1]
