"""The compact style: terse lines for tiny models, equal in calls to any other style.

    U: R1 dispute a bill at Amber Ridge Group<|im_end|>
    A: search Amber Ridge Group<|im_end|>
    T: Amber Ridge Group, banking: Billing 555-0102 bills<|im_end|>
    A: call 555-0102 R1 ?account_number<|im_end|>

A bare field name sends the form's value, `name=value` a literal one, `?name` offers the field; `reference` is
what a line gave for this request. `wait` waits for the call on hold, or for a closed line. Lines before the
command are thoughts: they stay in the text and do nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from env.chat.neutral import added_replacements
from env.chat.style import FROM_OPENAI, STOP_TOKEN, ChatStyle
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, WAIT
from env.phone.world.lexicon import FIELDS, REFERENCE
from env.protocol import Action, ToolCall
from pipeline.ids import digest

_COMMANDS = ("search", "form", "call", "wait")
MAX_MESSAGE_CHARACTERS = 4000
GRAMMAR_VERSION = 3  # 2: `wait`, and `reference` in a call. 3: attempts are told without their thoughts

_LAST_MARK = 'replace("\\nS:", "\\n\uff33:")'  # of the template's macro, before which all others stand
# Characters that a literal value may hold as they are; the rest is percent-encoded, blanks above all.
_PLAIN = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


class _BadArgumentsError(Exception):
    """A command with arguments that do not fit its tool; the text is the problem."""


class CompactStyle(ChatStyle):
    """Renders messages as `U: A: T:` lines and reads one command per assistant message.

    Tools are not shown: the commands are learnt by example. No text from outside the policy may hold `added`,
    the tokenizer's added tokens.
    """

    name = "compact"
    max_told_characters = 120
    ascii_arguments = True

    def __init__(self, added: Sequence[str] = ()) -> None:
        source = Path(__file__).with_name("compact.jinja").read_text(encoding="utf-8").rstrip("\n")
        replacements = added_replacements(added)
        quoted = [[json.dumps(text, ensure_ascii=False) for text in pair] for pair in replacements]
        also = "".join(f" | replace({mark}, {broken})" for mark, broken in quoted)
        template = FROM_OPENAI + source.replace(_LAST_MARK, _LAST_MARK + also, 1)
        super().__init__(template, digest("compact", GRAMMAR_VERSION, source))

    def parse(self, text: str) -> Action:
        """Returns the action of one assistant message; total and linear in its length.

        A message that is empty or starts with `done` is no call. Lines that start with no command are
        passed over, unless no line does: then the tool is unknown.
        """
        body = text.removesuffix(STOP_TOKEN)
        if len(body) > MAX_MESSAGE_CHARACTERS:
            return Action(body, "bad_args", problem=f"more than {MAX_MESSAGE_CHARACTERS} characters")
        lines = [words for line in body.splitlines() if (words := line.split())]
        commands = [words for words in lines if words[0] in _COMMANDS]
        if len(commands) > 1:
            return Action(body, "too_many", problem="one call per message")
        if not commands:
            if not lines or lines[0][0] == "done":
                return Action(body, "none")
            return Action(body, "unknown_tool", problem="unknown command; use search, form, call or done")
        verb, *words = commands[0]
        try:
            call = _call_of(verb, words)
        except _BadArgumentsError as error:
            return Action(body, "bad_args", problem=str(error))
        return Action(body, "ok", (call,))

    def format_call(self, call: ToolCall) -> str:
        """Returns the command that `parse` reads as this call: names have single blanks, an id none.

        Raises ValueError for an unknown tool.
        """
        arguments = call.arguments
        if call.name == SEARCH:
            return " ".join(["search", *arguments["company_name"].split()])
        if call.name == FORM:
            return " ".join(["form", *arguments["fields"]])
        if call.name == CALL:
            sent = [_format_field(field, value) for field, value in arguments["auth_info"].items()]
            return " ".join(["call", arguments["phone_number"], arguments["request"], *sent])
        if call.name == WAIT:
            return " ".join(["wait", *filter(None, [arguments.get("call_id")])])
        raise ValueError(f"tool {call.name!r} has no compact form; known: {SEARCH}, {FORM}, {CALL}, {WAIT}")

    def action_of(self, call: ToolCall | None) -> Action:
        """Returns the action with this call's command as its text; None is `done`."""
        return Action("done", "none") if call is None else Action(self.format_call(call), "ok", (call,))

    def told(self, action: Action) -> str:
        """Returns a message's commands, all of it where it has none, without literal values.

        A value counts only if the new attempt's own form gives it.
        """
        lines = [words for line in action.text.splitlines() if (words := line.split())]
        words = [word for words in lines if words[0] in _COMMANDS for word in words] or action.text.split()
        return " ".join(f"{word.split('=', 1)[0]}=*" if "=" in word else word for word in words)


def _format_field(field: str, value: str | bool | None) -> str:
    if value is None:
        return f"?{field}"
    return f"{field}={quote(value, safe=_PLAIN)}" if isinstance(value, str) else field


def _call_of(verb: str, words: list[str]) -> ToolCall:
    """Returns the call of a command; raises _BadArgumentsError."""
    if verb == "search":
        if not words:
            raise _BadArgumentsError("search needs a company name")
        return ToolCall(SEARCH, {"company_name": " ".join(words)})
    if verb == "form":
        if not words:
            raise _BadArgumentsError("form needs fields")
        _check_fields(words, FIELDS)
        return ToolCall(FORM, {"fields": words})
    if verb == "wait":
        if len(words) > 1:
            raise _BadArgumentsError("wait takes the id of the call on hold, or nothing")
        return ToolCall(WAIT, {"call_id": words[0]} if words else {})
    if len(words) < 2:
        raise _BadArgumentsError("call needs a number and a request")
    phone, request, *sent = words
    auth_info: dict[str, str | bool | None] = {}
    names = []
    for word in sent:
        name, is_literal, value = word.partition("=")
        is_offer = name.startswith("?")
        name = name.removeprefix("?")
        if is_literal and is_offer:
            raise _BadArgumentsError("write name, ?name or name=value")
        names.append(name)
        auth_info[name] = None if is_offer else unquote(value) if is_literal else FROM_FORM
    _check_fields(names, (*FIELDS, REFERENCE))
    return ToolCall(CALL, {"phone_number": phone, "request": request, "auth_info": auth_info})


def _check_fields(names: Sequence[str], known: Sequence[str]) -> None:
    if any(name not in known for name in names):
        raise _BadArgumentsError("unknown field")
    if len(set(names)) < len(names):
        raise _BadArgumentsError("a field twice")
