"""Rule feedback: a pure function of an episode's events, never of its text and never with a value."""

from collections.abc import Sequence
from typing import Literal, get_args

from pipeline.types import Event, Feedback

Verbosity = Literal["binary", "observed", "corrective"]
MAX_CHARACTERS = 600

_GOES_ON = {"served", "referred", "on_hold"}
_FAILS = {
    *("auth_missing", "auth_mismatch", "fabricated_auth", "wrong_department", "must_call_first"),
    *("closed", "locked", "invalid_number", "unknown_request"),
}
_NAMING = ("auth_missing", "must_call_first")
NEXT, ENOUGH = "next", "enough"
"""Last in the detail of an event that names fields: the line named the next one; what it heard of will do."""
SERVES_NOT = "does not serve"
"""In the detail of a wrong line that says itself which one, by number if it shares its name, and for what."""
_HINTS = {
    "fabricated_auth": "Only values of the form count.",
    "auth_mismatch": "A value did not fit its field.",
    "form_already_submitted": "There is one form only.",
    "form_too_long": "The form was too long.",
    "locked": "The line is locked.",
    "nothing_to_wait_for": "Nobody was on hold.",
    "invalid_number": "Dial a number of the directory.",
    "unknown_request": "Name the request by its id.",
    "not_found": "Search the full name.",
    "malformed_json": "A message was no valid call.",
    "unknown_tool": "A message was no valid call.",
    "bad_args": "A message was no valid call.",
    "too_many": "One call per message.",
    "none": "You stopped too early.",
    "max_turns": "No turns were left.",
}

_ON_THE_WAY = {
    "must_call_first": "{line}: {detail}.",
    "closed": "{line} {detail}.",
    "on_hold": "{line} put the call on hold.",
    "referred": "{line} sent {detail}.",
    "two_values": "The customer gave two values for {fields}.",
}


def rule_feedback(
    events: Sequence[Event],
    verbosity: Verbosity,
    needed: Sequence[str] = (),
    routes: Sequence[tuple[str, Sequence[str]]] = (),
) -> Feedback:
    """Returns what a failed episode teaches.

    `binary` says that it failed and where, `observed` what the episode was told and did, `corrective` also
    what should have been done: the fields `needed` by all lines, and the `routes` (request id, lines to call
    in order) of requests that are referred on. Raises ValueError for an unknown verbosity.
    """
    if verbosity not in get_args(Verbosity):
        raise ValueError(f"verbosity {verbosity!r}; known: {', '.join(get_args(Verbosity))}")
    source = f"rules/{verbosity}"
    if verbosity == "binary":
        return Feedback(_binary(events), source)
    sentences = _observed(events)
    if verbosity == "observed" or not needed:
        return Feedback(_cut(sentences), source)
    advice = [f"Ask for {', '.join(needed)} in the one form."]
    served = {event.detail for event in events if event.code == "served"}
    advice += [f"For {key} call {', then '.join(names)}." for key, names in routes if key not in served]
    told = {field for event in events if event.code in _NAMING for field in event.fields}
    is_privileged = bool(routes) or not set(needed) <= told
    # What corrects is never cut: what was observed takes the room that it leaves.
    room = MAX_CHARACTERS - sum(len(sentence) + 1 for sentence in advice)
    return Feedback(" ".join(filter(None, [_cut(sentences, room), *advice])), source, is_privileged)


def _binary(events: Sequence[Event]) -> str:
    calls = [event for event in events if event.code in _GOES_ON | _FAILS]
    if not calls:
        return "Not completed. No call was made."
    if calls[-1].code in _GOES_ON:
        return "Not completed. More calls were needed."
    where = f"to {calls[-1].target} " if calls[-1].target else ""
    return f"Not completed. The call {where}failed."


def _observed(events: Sequence[Event]) -> list[str]:
    form = next((event for event in events if event.code == "form"), None)
    had = form.fields if form else ()
    lacking = [field for event in events if event.code == "unavailable" for field in event.fields]
    named, sentences = _named(events)
    probes = {event.turn for event in events if event.code == "probe"}
    sent = {event.target for event in events if form and event.turn > form.turn and event.turn not in probes}
    if form is None:
        sentences.append("You sent no form.")
    elif not had:
        sentences.append("Your form had nothing.")
    elif named and all(set(fields) <= set(had) for fields in named.values()) and not sent & named.keys():
        sentences.append(f"Your form had {', '.join(had)}, but no later call sent it there.")
    else:
        sentences.append(f"Your form had {', '.join(had)} only.")
    if lacking:
        sentences.append(f"The customer has no {', '.join(lacking)}.")
    if routed := [event for event in events if event.code == "wrong_department"]:
        name, detail = routed[-1].target, routed[-1].detail
        if SERVES_NOT not in detail:
            detail = f"Not {name}: {detail}" if detail else f"Not {name}"
        sentences.append(f"{detail}.")
    sentences += _on_the_way(events)
    codes = [event.code for event in events]
    sentences += list(dict.fromkeys(_HINTS[code] for code in codes if code in _HINTS))
    return sentences


def _named(events: Sequence[Event]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Returns line -> fields that it named last, or one at a time, and a sentence on each line."""
    named: dict[str, tuple[str, ...]] = {}
    sentences: dict[str, str] = {}
    enough = set[str]()
    offers = {event.turn: event.fields for event in events if event.code == "probe"}
    for event in events:
        if event.code not in _NAMING:
            continue
        detail, how = _parted(event.detail)
        if how == ENOUGH:
            enough.add(event.target)
            fields = offers.get(event.turn, ())
            named[event.target] = fields
            what = ", ".join(fields) or "all that the call named"
            sentences[event.target] = f"{event.target} would take: {what}."
        elif event.fields and event.target not in enough:
            before = named.get(event.target, ()) if how == NEXT else ()
            fields = named[event.target] = tuple(dict.fromkeys((*before, *event.fields)))
            others = f" {detail}" if event.code == "auth_missing" and detail else ""
            sentences[event.target] = f"{event.target} needs: {', '.join(fields)}{others}."
    return named, list(sentences.values())


def _parted(detail: str) -> tuple[str, str]:
    """Returns an event's detail without the word on how a line named fields, and that word or ""."""
    *before, last = detail.split("; ")
    return ("; ".join(before), last) if last in (NEXT, ENOUGH) else (detail, "")


def _on_the_way(events: Sequence[Event]) -> list[str]:
    """Returns what routing, hours, holds and doubtful values taught: one sentence a line, its last word."""
    sentences: dict[tuple[str, ...], str] = {}
    for event in events:
        if event.code in _ON_THE_WAY:
            detail = _parted(event.detail)[0] or "another line comes first"
            key = (event.code, event.target, detail if event.code == "referred" else "")
            fields = ", ".join(event.fields)
            sentences[key] = _ON_THE_WAY[event.code].format(line=event.target, detail=detail, fields=fields)
    return list(sentences.values())


def _cut(sentences: Sequence[str], most: int = MAX_CHARACTERS) -> str:
    """Returns as many whole sentences as fit."""
    text = ""
    for sentence in sentences:
        if len(text) + len(sentence) + 1 > most:
            break
        text = f"{text} {sentence}".strip()
    return text
