"""What lines, directory and form say, and what an event tells of it: the seed picks one of four phrasings."""

import re
from random import Random

from env.phone.episode.calls import Outcome
from env.phone.episode.feedback import ENOUGH, NEXT, SERVES_NOT
from env.phone.world.rules import Disclosure, ordered
from env.phone.world.world import World

_TABLE = """
found: {company}, {industry}: {departments} | {company} ({industry}): {departments} |
    {industry}, {company}: {departments} | {company} is {industry}: {departments}
not_found: not found, try {names} | unknown company, try {names} | no such company, try {names} |
    nothing found, try {names}
form: {values} | given: {values} | customer: {values} | here: {values}
either: {field} is {first} or {second} | {field} {first} or else {second} |
    {field} {first}, maybe {second} | {field} {first}, if not {second}
unavailable: no {fields} | without {fields} | lacks {fields} | not {fields}
form_already_submitted: only one form | form already used | no second form | the form was used
form_too_long: too long, at most {limit} fields | at most {limit} fields |
    form holds {limit} fields at most | too many fields, {limit} at most
served: {department}: {request} done | {department} served {request} | {request} done by {department} |
    {department} did {request}
auth_missing: {department} needs {fields} | {department}: needs {fields} | {department} asks for {fields} |
    {department} wants {fields}
auth_unnamed: {department} needs more | {department}: not enough | {department} asks for more |
    {department} wants more
auth_first: {department} needs first {fields} | {department} asks first for {fields} |
    {department} wants first {fields} | {department}: next {fields}
auth_enough: {department}: that will do | {department} would take that |
    {department} needs no more than that | {department}: bring just that
auth_mismatch: {department}: wrong {fields} | {department} refused {fields} |
    {department}: {fields} is wrong | {department}: no match for {fields}
fabricated_auth: {department}: {fields} not from the customer | {department} refused made-up {fields} |
    {department}: {fields} was made up | {department}: invented {fields}
wrong_department: not {department}, try {right} | {right} does that | wrong line, try {right} |
    that is {right}
wrong_department_vague: not {department} | {department} does not do that | wrong line, not {department} |
    {department} is the wrong line
must_call_first: {department}: call {other} first | {department} wants {other} called first |
    first call {other}, then {department} | {department} only after {other}
must_call_first_vague: {department}: another line comes first |
    {department} wants another line called first | another line first, then {department} |
    {department} only after another line
have_ready: have {fields} ready | and bring {fields} | keep {fields} ready | then give {fields}
referred: {department}: {request} goes on to {other} | {department} refers {request} to {other} |
    {request} referred to {other} by {department} | {department} sends {request} on to {other}
reference: reference {value} | with reference {value} | your reference {value} | reference is {value}
on_hold: {department} is busy, on hold as {call_id} | {department}: on hold, {call_id} |
    {department} holds the call as {call_id} | busy, {department} has you on hold as {call_id}
closed: {department} is closed until turn {opens}, now turn {now} |
    {department} opens at turn {opens}, now turn {now} |
    {department}: closed, opens at turn {opens}, this is {now} |
    closed, {department} opens at turn {opens}, now {now}
waited: now turn {now} | waited, turn {now} | it is turn {now} | turn {now} now
nothing_to_wait_for: nothing to wait for | no call on hold | nobody is on hold | nothing on hold
transferred: passed to {department}. | moved to {department}. | sent on to {department}. |
    transfer to {department}.
locked: {department} is locked | {department}: locked | {department} takes no more calls |
    locked out of {department}
invalid_number: invalid number | no such number | number not in use | wrong number
unknown_request: unknown request | no such request | which request? | request not known
parser: error: {problem} | invalid: {problem} | refused: {problem} | not run: {problem}
"""
PHRASES: dict[str, tuple[str, ...]] = {
    key: tuple(" ".join(phrases.split()).split(" | "))
    for key, phrases in (entry.split(": ", 1) for entry in re.split(r"\n(?=\S)", _TABLE.strip()))
}
"""What happened -> its phrasings."""


class Speaker:
    """Words what happens in one episode; equal task, seed and order of words give equal text."""

    def __init__(self, task_id: str, seed: int) -> None:
        self._key = f"{task_id}:{seed}"
        self.counter = 0

    def random(self, purpose: str) -> Random:
        """Returns the random numbers of the next thing that is said."""
        self.counter += 1
        return Random(f"{self._key}:{purpose}:{self.counter}")

    def say(self, key: str, **words: object) -> str:
        """Returns one of the phrasings of a key."""
        return self.random(key).choice(PHRASES[key]).format(**words)

    def reference(self, request_id: str, phone: str) -> str:
        """Returns the reference that a line gives for a request, at any time in the episode."""
        rng = Random(f"{self._key}:reference:{request_id} {phone}")
        return f"T{rng.randrange(10_000):04d}"

    def outcome(self, outcome: Outcome, now: int, call_id: str) -> str:
        """Returns what a line says of a call that came to this."""
        key = outcome.status
        if key in ("wrong_department", "must_call_first") and not outcome.other_department:
            key += "_vague"
        fields = ", ".join(ordered(outcome.fields))
        if key == "auth_missing":
            key, fields = _disclosed(outcome.disclosure)
        text = self.say(
            key,
            department=outcome.department,
            request=outcome.request_id,
            fields=fields,
            right=outcome.other_department,
            other=outcome.other_department,
            opens=outcome.opens,
            now=now,
            call_id=call_id,
        )
        if outcome.status == "must_call_first" and outcome.disclosure.kind:
            key, fields = _disclosed(outcome.disclosure)
            if fields:
                text = f"{text}, {self.say('have_ready', fields=fields)}"
            elif key == "auth_enough":
                text = f"{text}; {self.say(key, department=outcome.department)}"
        if outcome.gives_reference:
            value = self.reference(outcome.request_id, outcome.phone)
            text = f"{text}, {self.say('reference', value=value)}"
        if outcome.transferred_by:
            text = f"{self.say('transferred', department=outcome.department)} {text}"
        return text


def _disclosed(said: Disclosure) -> tuple[str, str]:
    """Returns which phrase tells of a disclosure, and the fields it names as text."""
    if said.is_enough:
        return "auth_enough", ""
    if said.count is not None:
        return "auth_missing", f"{said.count} more"
    if not said.missing:
        return "auth_unnamed", ""
    fields = ", ".join(said.missing) + "".join(" or " + ", ".join(other) for other in said.others)
    return ("auth_first" if said.kind == "first" else "auth_missing"), fields


def event_detail(outcome: Outcome, world: World) -> str:
    """Returns what an event says beside its code: who else, when, for what, or what else would do.

    Where two lines have one name, a line may be wrong that is needed by name, or for another request.
    """
    other, said = outcome.other_department, outcome.disclosure
    # Feedback has to know how a line named fields: one at a time, or that what it heard of will do.
    how = [ENOUGH] if said.is_enough else [NEXT] if said.kind == "first" else []
    match outcome.status:
        case "wrong_department" if other:
            return f"{other} serves it"
        case "wrong_department" if world.level.has_twins:
            names = [line.name for line in world.company.departments]
            is_twin = names.count(outcome.department) > 1
            line = f"{outcome.phone} ({outcome.department})" if is_twin else outcome.department
            return f"{line} {SERVES_NOT} {outcome.request_id}"
        case "must_call_first":
            return "; ".join([f"{other} comes first", *how] if other else how)
        case "referred":
            return f"{outcome.request_id} on to {other}"
        case "served" if len(world.requests) > 1:
            return outcome.request_id
        case "closed":
            return f"opens at turn {outcome.opens}"
        case "auth_missing":
            others = "".join(" or " + ", ".join(fields) for fields in said.others).strip()
            return others or "".join(how)
        case _:
            return ""
