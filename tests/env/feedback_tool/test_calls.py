"""The call in each style: what is one, what it asks about, and what stays as it is without the tool."""

from typing import Any

import pytest

from env.catalog import offer_of
from env.feedback_tool.calls import ANSWER, NAME, answer_spans, asked_about, is_call
from env.protocol import Action, ToolCall

TOOLED = {name: offer_of(f"{name}+{NAME}") for name in ("phone", "math", "code", "short")}
STYLES = [(name, style) for name, offer in TOOLED.items() for style in offer.styles]
TEXTS = ["e", "get", "3 + 4 = 7\n\\boxed{7}", 'say "<b>"\n\u00e9', "7"]


@pytest.mark.parametrize(("name", "style_name"), STYLES)
def test_a_call_is_read_as_it_was_written(name: str, style_name: str) -> None:
    style = TOOLED[name].style(style_name)
    if name == "phone":
        action = style.parse(style.action_of(ToolCall(NAME, {})).text + style.stop_token)
        assert is_call(action)
        assert answer_spans(action) == []
        return
    for text in TEXTS:
        made = style.action_of(ToolCall(NAME, {ANSWER: text}))
        action = style.parse(made.text + style.stop_token)
        assert action == made
        assert is_call(action)
        assert asked_about(action) == text
        [(start, end)] = answer_spans(action)
        outside = action.text[:start] + action.text[end:]
        assert NAME in outside
        assert "boxed" not in outside


@pytest.mark.parametrize(("name", "style_name"), STYLES)
def test_other_messages_and_prompts_are_read_and_written_as_without_the_tool(
    name: str, style_name: str
) -> None:
    with_tool, bare = TOOLED[name].style(style_name), offer_of(name).style(style_name)
    assert with_tool.digest != bare.digest
    said = [{"role": "user", "content": "R1 a question"}]
    for text in ("done", "Answer: 7", "search Blue Hill One", f"{NAME} or not", "<tool_call>", ""):
        assert with_tool.parse(text) == bare.parse(text)
        assert with_tool.told(with_tool.parse(text)) == bare.told(bare.parse(text))
    if style_name != "full":  # which lists its tools
        assert with_tool.render_prompt(said, ["x => y"]) == bare.render_prompt(said, ["x => y"])
    else:
        assert NAME in with_tool.render_prompt(said)
        assert NAME not in bare.render_prompt(said)
    replies = [{"role": "tool", "content": "No error was found.", "tool_call_id": "call_0_0"}]
    assert with_tool.render_replies(replies) == bare.render_replies(replies)


@pytest.mark.parametrize(("answer", "literal"), [(0, "0"), ("a < \u00e9", '"a < \\u00e9"'), (["7"], '["7"]')])
def test_the_answer_of_a_recorded_call_is_found_as_it_was_written(answer: Any, literal: str) -> None:
    text = f'<tool_call>\n{{"name": "{NAME}", "arguments": {{"{ANSWER}": {literal}}}}}\n</tool_call>'
    [(start, end)] = answer_spans(Action(text, "ok", (ToolCall(NAME, {ANSWER: answer}),)))
    assert text[start:end] == literal.strip('"')


def test_a_call_beside_another_one_is_one_too_many() -> None:
    style = TOOLED["phone"].style()
    assert style.parse(f"search Blue Hill One\n{NAME}").status == "too_many"
    assert is_call(style.parse(f"nobody told me\n{NAME}\n"))


def test_the_full_style_refuses_a_call_without_its_answer() -> None:
    style = TOOLED["math"].style("full")
    call = f'<tool_call>\n{{"name": "{NAME}", "arguments": {{}}}}\n</tool_call>'
    assert style.parse(call).status == "bad_args"
    assert TOOLED["phone"].style("full").parse(call).status == "ok"


def test_an_earlier_attempt_is_told_with_the_answers_that_it_asked_about() -> None:
    style = TOOLED["math"].style()
    asked = style.parse(f"3 + 4 = 8\n\\boxed{{8}}\n{NAME}")
    assert style.attempt_line([asked], "Line 1 is wrong.") == (
        f"3 + 4 = 8 \\boxed{{8}} {NAME} => Line 1 is wrong."
    )
    assert TOOLED["phone"].style().told(TOOLED["phone"].style().parse(NAME)) == NAME
