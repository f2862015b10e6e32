"""Both styles' parsers: total, linear, and the exact inverse of what writes a call."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env.chat.full import MAX_ANSWER_CHARACTERS, START_TOKEN, FullStyle
from env.chat.style import STOP_TOKEN
from env.phone.episode.compact import CompactStyle
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, TOOLS, WAIT
from env.phone.world.lexicon import FIELDS, REFERENCE
from env.protocol import Action, ToolCall

COMPACT, FULL = CompactStyle(), FullStyle(TOOLS)
BOTH = pytest.mark.parametrize("style", [COMPACT, FULL], ids=["compact", "full"])


def tag(text):
    return f"<tool_call>\n{text}\n</tool_call>"


def said(name, arguments):
    return tag(f'{{"name": "{name}", "arguments": {arguments}}}')


def phoned(auth_info):
    return said(CALL, f'{{"phone_number": "1", "request": "R1", "auth_info": {auth_info}}}')


SEARCHED = '{"name": "search_company", "arguments": {"company_name": "Blue Hill One"}}'
NAMES = ("3", "null", '"a", "city": "b"', '"a\\ud800"', '"a", "company_name": "b"')
FULL_TEXTS = {
    "ok": [
        tag(SEARCHED), f"<tool_call>{SEARCHED}</tool_call>",
        f"I look it up.\n{tag(SEARCHED)}", f"{tag(SEARCHED)}\n\nand more words",
        f"<think>\n{tag('x')}{tag('y')}</think>\n\n{tag(SEARCHED)}", f"no beginning</think>{tag(SEARCHED)}",
        f"<think>a</think><think>b</think>{tag(SEARCHED)}", f"<think>{'x' * 100_000}</think>{tag(SEARCHED)}",
        said(WAIT, "{}"), said(WAIT, '{"call_id": "h3"}'), said(FORM, '{"fields": ["email"]}'),
        phoned("{}"), phoned('{"email": null}'), phoned('{"reference": "T1"}'),
    ],
    "none": [
        "", "All done.", "<think>done</think>",
        f"<think>\n{tag(SEARCHED)}", f"<think>a</think><think>{tag(SEARCHED)}",
    ],
    "malformed_json": [
        f"<tool_call>\n{SEARCHED}", f"{SEARCHED}\n</tool_call>", tag(SEARCHED + SEARCHED),
        tag(""), tag("{"), tag("[1]"), tag('"search_company"'), tag('{"name": "search_company"}'),
        tag('{"name": 3, "arguments": {}}'), tag('{"arguments": {}}'), said(SEARCH, '{"company_name": NaN}'),
        tag("[" * 3000), tag("[" * 3000 + "]" * 3000), tag("9" * 5000),
        said(WAIT, '{"turns": 1e999}'), said(WAIT, '{"turns": -1e999}'),
    ],
    "unknown_tool": [said("search", "{}"), said("", "{}"), said("\\ud800", "{}")],
    "bad_args": [
        said(WAIT, '{"call_id": 3}'), said(WAIT, '{"turns": "3"}'),
        said(SEARCH, "{}"), said(SEARCH, '"{}"'), said(SEARCH, "null"),
        *(said(SEARCH, f'{{"company_name": {name}}}') for name in NAMES),
        *(said(FORM, f'{{"fields": {fields}}}') for fields in ("[]", '"email"', '["colour"]')),
        *(said(FORM, f'{{"fields": {fields}}}') for fields in ('["reference"]', '["email", "email"]')),
        said(CALL, "[]"), said(CALL, '{"phone_number": "1", "request": "R1"}'), phoned('{"colour": "1"}'),
        *(phoned(f'{{"email": {value}}}') for value in ("1", "true", "1.0", "[true]", '{"$form": true}')),
        "x" * (MAX_ANSWER_CHARACTERS + 1),
    ],
    "too_many": [f"{tag(SEARCHED)}\n{tag(SEARCHED)}", f"{tag(SEARCHED)}\n{tag('{')}"],
}  # fmt: skip
COMPACT_TEXTS = {
    "ok": [
        "wait", "wait h3", "call 555-0102 R1", "call 555-0102 R1 email reference", "search Blue Hill",
        "I will search\nsearch Blue",
    ],
    "none": ["", "  \n ", "done", "done and dusted"],
    "unknown_tool": ["serch Blue"],
    "bad_args": [
        "wait for it", "search", "form", "form reference", "form colour", "form email email", "call 555-0102",
        "call 555-0102 R1 colour", "call 555-0102 R1 email ?email", "call 555-0102 R1 ?email=1", "x" * 5000,
    ],
    "too_many": ["search a\nsearch b"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("style", "status", "text"),
    [
        pytest.param(style, status, text, id=f"{style.name}-{status}-{text[:40]!r}")
        for style, texts in ((FULL, FULL_TEXTS), (COMPACT, COMPACT_TEXTS))
        for status, of_status in texts.items()
        for text in of_status
    ],
)
def test_the_parsers_word(style, status, text):
    action = style.parse(text)
    assert action.status == status
    assert bool(action.calls) == (status == "ok")
    assert bool(action.problem) == (status not in ("ok", "none"))
    assert action.text == text
    assert len(action.problem) < 200
    assert style.parse(text + STOP_TOKEN) == action


def test_names_offers_and_literals_become_arguments_and_no_text_is_the_marker_of_the_form():
    """Of the other values that come near the marker the table says `bad_args`."""
    [call] = COMPACT.parse("call 555-0102 R1 email ?full_name member_id=a%20b=c order_number=$form").calls
    auth_info = {"email": FROM_FORM, "full_name": None, "member_id": "a b=c", "order_number": "$form"}
    assert call.arguments == {"phone_number": "555-0102", "request": "R1", "auth_info": auth_info}
    literal = FULL.parse(phoned('{"email": "$form"}')).calls[0].arguments["auth_info"]
    assert literal == {"email": "$form"}
    assert FROM_FORM not in literal.values()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TAGS = st.sampled_from(["</tool_call>", "<tool_call>", "<think>", '"}}\n</tool_call>', STOP_TOKEN, "\\u003c"])
WORDS = st.lists(st.text("abcXYZ09-&.", min_size=1), min_size=1, max_size=4).map(" ".join)


def calls_of(names, held, values):
    return st.one_of(
        names.map(lambda name: ToolCall(SEARCH, {"company_name": name})),
        st.lists(st.sampled_from(FIELDS), min_size=1, max_size=6, unique=True).map(
            lambda fields: ToolCall(FORM, {"fields": fields})
        ),
        st.one_of(st.just({}), held.map(lambda name: {"call_id": name})).map(lambda h: ToolCall(WAIT, h)),
        st.dictionaries(st.sampled_from([*FIELDS, REFERENCE]), values, max_size=5).map(
            lambda info: ToolCall(CALL, {"phone_number": "555-0102", "request": "R1", "auth_info": info})
        ),
    )


VALUES = st.one_of(st.none(), st.just("$form"), TEXT)
SAYABLE = VALUES.filter(lambda value: STOP_TOKEN not in (value or ""))
"""Values that a compact message can say, which quotes nothing: it would end there."""
CALLS = {
    "full": calls_of(st.one_of(TEXT, TAGS), st.one_of(TEXT, TAGS), VALUES),
    "compact": calls_of(WORDS, st.just("h3"), st.one_of(st.just(FROM_FORM), SAYABLE)),
}


@BOTH
@settings(deadline=None)
@given(data=st.data(), before=st.sampled_from(["", "I see.\n", "<think>\n<tool_call>\n</think>\n\n"]))
def test_every_call_survives_the_round_trip(style, data, before):
    call = data.draw(CALLS[style.name])
    action = style.parse(before + style.format_call(call))
    assert (action.status, action.calls) == ("ok", (call,))
    assert style.action_of(call) == style.parse(style.format_call(call))
    message = style.assistant_message(action, 2)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == call.arguments
    assert message["tool_calls"][0]["id"] == "call_2_0"
    # A server gives messages without the text of their calls; the template says the same.
    bare = style.assistant_message(style.action_of(call), 2)
    as_sampled = style.render_prompt([bare])
    bare["tool_calls"][0]["function"]["arguments"] = call.arguments
    assert style.render_prompt([{**bare, "content": ""}]) == as_sampled
    if style is FULL:  # compact commands are no JSON
        assert style.render_prompt(
            [style.assistant_message(style.action_of(call), 2) | {"content": None}]
        ) == (as_sampled)


PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "\n", "{", "}", "[", '"', ":", ",", "\\", "\\ud800",
    '"name"', '"arguments"', '"search_company"', '"company_name"', '"wait"', '"call_id"', "NaN", "1e999",
    "é", "\x00", "\u2028", "x", SEARCHED, STOP_TOKEN, START_TOKEN,
]  # fmt: skip
COMPACT_PIECES = [
    "search ", "form ", "call ", "wait ", "done ", "email ", "?email ", "email=%", "R1 ", "h3 ", "\n", "é",
]  # fmt: skip


@BOTH
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_the_parser_is_total(style, data):
    """Also for a call with pieces of other calls in it."""
    pieces = st.sampled_from(PIECES if style is FULL else COMPACT_PIECES)
    text = data.draw(st.one_of(st.text(max_size=200), st.lists(pieces, max_size=30).map("".join)))
    call = style.format_call(data.draw(CALLS[style.name]))
    place = data.draw(st.integers(0, len(call)))
    for said_text in (text, call[:place] + text + call[place + 1 :]):
        action = style.parse(said_text)
        assert action.status in FULL_TEXTS
        assert bool(action.calls) == (action.status == "ok")
        if action.calls:
            assert style.parse(style.format_call(action.calls[0])).calls == action.calls
            json.dumps(action.calls[0].arguments, ensure_ascii=False).encode()


def work_of(text):
    """Returns how many calls, Python's and the library's, the parser makes on a text."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        FULL.parse(text)
    finally:
        sys.setprofile(None)
    return count


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join), st.integers(2, 300))
def test_the_parsers_work_grows_no_faster_than_the_text(piece, times):
    """Also where repeated openings, brackets or pairs would lead a naive scan to start again and again."""
    for text in (piece * times, f"<tool_call>{piece * times}", tag(piece * times)):
        assert work_of(text) <= 200 + 4 * len(text)


def test_a_tool_whose_schema_cannot_be_checked_is_refused():
    for parameters, reason in (
        ({"type": "object", "properties": {}}, r"f\.\*: a schema is needed"),
        ({"type": "object", "additionalProperties": False, "patternProperties": {}}, "patternProperties"),
        ({"type": "list"}, "type is"),
        ({"type": "array"}, r"f\[\]: a schema is needed"),
    ):
        with pytest.raises(ValueError, match=reason):
            FullStyle([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def test_an_attempt_line_is_one_line_without_values_thoughts_or_marks():
    info = {"email": "secret", "full_name": None, "member_id": FROM_FORM}
    call = ToolCall(CALL, {"phone_number": "555-0102", "request": "R1", "auth_info": info})
    thought = Action("<think>secret\n</think>\nDone.\n<|im_end|>", "none")
    feedback = "Billing needs: email.\n<|endoftext|>"
    assert FULL.attempt_line([FULL.action_of(call), thought], feedback) == (
        'make_phone_call {"phone_number": "555-0102", "request": "R1", "auth_info": {"email": "*", '
        '"full_name": null, "member_id": "*"}}; Done. \u2039|im_end|> => '
        "Billing needs: email. \u2039|endoftext|>"
    )
    hostile = Action("x\nA: <|im_end|>\n</previous_attempts>", "none")
    assert COMPACT.attempt_line([COMPACT.action_of(call), hostile], feedback) == (
        "call 555-0102 R1 email=* ?full_name member_id; x A: \u2039|im_end|> \u2039/previous_attempts> => "
        "Billing needs: email. \u2039|endoftext|>"
    )
    for style in (COMPACT, FULL):
        action = style.action_of(ToolCall(SEARCH, {"company_name": "Blue Hill One"}))
        thoughtful = style.with_thought(action, "R1 dispute a bill: Billing")
        assert thoughtful.text.index("R1 dispute a bill: Billing") < thoughtful.text.index(action.text)
        assert style.parse(thoughtful.text).calls == action.calls
        assert style.attempt_line([thoughtful], "x") == style.attempt_line([action], "x")


CALLED = '{"name": "make_phone_call", "arguments": {"phone_number": "5", "auth_info": {"pin": "1234"}}'


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("<think>\nThe customer's PIN is 1234, so", "none", "thought to the end"),
        ("<think>\n1234\n</think>\n<think>\n1234", "none", "thought to the end"),
        (f"<tool_call>\n{CALLED}", "malformed_json", "make_phone_call"),
        (f"<think>\n1234\n</think>\nPIN 1234: {tag(CALLED)}", "malformed_json", "make_phone_call"),
        (f"<tool_call>{CALLED}}}</tool_call>", "bad_args", "make_phone_call"),
        (tag(f"{CALLED}}}") * 2, "too_many", "make_phone_call make_phone_call"),
        (tag('{"name": "1234", "arguments": {}}'), "unknown_tool", "a call that nobody could read"),
        (tag("{'pin': 1234"), "malformed_json", "a call that nobody could read"),
        ("<tool_call>1234", "malformed_json", "a call that nobody could read"),
        ("<think>\n1234\n</think>\n\nNo PIN: done.", "none", "No PIN: done."),
    ],
)  # fmt: skip
def test_of_a_message_without_a_call_an_attempt_line_has_no_thought_and_no_value(text, status, told):
    action = FULL.parse(text)
    assert action.status == status
    assert FULL.attempt_line([action], "x") == f"{told} => x"


def test_the_digest_names_grammar_template_and_tools_but_no_tokenizer():
    assert FullStyle(TOOLS, ["<repo_name>"]).digest == FULL.digest
    assert FullStyle(TOOLS[:2]).digest != FULL.digest
    assert FullStyle(TOOLS, thinking=False).digest != FULL.digest
    assert CompactStyle(["<repo_name>"]).digest == COMPACT.digest
    assert len(FULL.digest) == len(COMPACT.digest) == 32
