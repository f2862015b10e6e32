"""Cosmetic and harmful changes of a phone step, in the forms that are legal there.

A message without a call ends the episode and of two calls in one message none runs, so a filler has to stand
before a call, a split to begin with a call that carries nothing, and a merged message to lose a turn. At
lines that are busy or closed a turn more helps, so that no step is merely repeated: none is doubled or split.
"""

from dataclasses import replace

from env.chat.style import ChatStyle
from env.offer import Edit
from env.phone.episode.tools import CALL, FORM, SEARCH, WAIT
from env.phone.world.levels import level_settings
from env.phone.world.lexicon import FIELDS
from env.protocol import ToolCall
from pipeline.types import Rollout

FILLER = "Let me think about this step by step."
CONFIDENT = "This is certainly the right step and it will succeed."
THANKS = "thank you"
MADE_UP = "0000"
TIME_HELPS = frozenset({"on_hold", "closed", "waited"})
"""What a line, or waiting, comes to where the same message would do more a turn later."""


def edits(rollout: Rollout, level: int, style: ChatStyle) -> list[Edit]:
    """Returns every change that a whole rollout allows; only states before its last step are compared."""
    found, steps = [], rollout.steps
    probe_is_free = not level_settings(level).probe_is_strike
    gains_by_time = {event.turn for event in rollout.events if event.code in TIME_HELPS}
    for i, step in enumerate(steps[:-1]):
        found.append(Edit("empty_reply", start=i, texts=(THANKS if i % 2 else "",), compare=i))
        action = style.parse(step.text)
        if action.status != "ok":
            continue
        call = action.calls[0]
        found += [
            Edit("filler", start=i, texts=(f"{FILLER}\n{step.text}",), compare=i + 1, same_events=True),
            Edit("style", start=i, texts=(f"{CONFIDENT}\n{step.text}",), compare=i + 1, same_events=True),
        ]
        if call.name != WAIT and i not in gains_by_time:
            found.append(Edit("duplicate", start=i + 1, texts=(step.text,), compare=i + 1))
            if probe_is_free and call.name == CALL and any(call.arguments["auth_info"].values()):
                bare = replace(call, arguments=call.arguments | {"auth_info": {}})
                first = _in_words_of(step.text, call, bare, style)
                found.append(Edit("split", start=i, texts=(first, step.text), compare=i + 1))
        if next_calls := style.parse(steps[i + 1].text).calls:
            # Of its words only the call, else thinking between the two would hide the first from the parser.
            merged = f"{step.text}\n{style.action_of(next_calls[0]).text}"
            found.append(Edit("merge", start=i, texts=(merged,), compare=i))
        if step.verifier_status == "ok":
            if call.name != CALL or i not in gains_by_time:  # else nobody has heard yet what it says
                text = _in_words_of(step.text, call, corrupted(call), style)
                found.append(Edit("corrupted_step", start=i, texts=(text,), compare=i + 1))
            found.append(Edit("swapped_task", start=i + 1, texts=(), compare=i + 1, other_prompt=True))
    return found


def corrupted(call: ToolCall) -> ToolCall:
    """Returns the call with a wrong content: another name, other fields, made-up values, nobody's number."""
    arguments = call.arguments
    if call.name == SEARCH:
        name = " ".join(reversed(arguments["company_name"].split()))
        return replace(call, arguments={"company_name": f"{name} Overseas"})
    if call.name == FORM:
        others = [field for field in reversed(FIELDS) if field not in arguments["fields"]]
        return replace(call, arguments={"fields": others[: len(arguments["fields"])]})
    if call.name == CALL:
        if info := arguments["auth_info"]:
            return replace(call, arguments=arguments | {"auth_info": dict.fromkeys(info, MADE_UP)})
        return replace(call, arguments=arguments | {"phone_number": "555-0000x"})
    return replace(call, arguments={"call_id": "none"})


def _in_words_of(text: str, call: ToolCall, other: ToolCall, style: ChatStyle) -> str:
    """Returns a message with another call in place of its own, or alone where its own cannot be found."""
    own, new = style.action_of(call).text, style.action_of(other).text
    before, found, after = text.rpartition(own)
    return f"{before}{new}{after}" if found else new
