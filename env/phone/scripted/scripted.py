"""A careless agent that reads the compact prompt as text: who plays when the engine kind is `scripted`.

It stands in for a model where only the plumbing matters. Like a model it sees nothing but the prompt,
errs at random, and does better with feedback, so at levels 1 and 2 its success lies strictly between 0 and 1.
Above them it never succeeds: it takes up one request, follows no referral and waits for nobody.
"""

import re
from dataclasses import dataclass
from random import Random

from env.chat.style import STOP_TOKEN
from env.phone.world.lexicon import FIELDS
from pipeline.ids import digest

DIGEST = digest("scripted phone agent", 1)
"""Stands where a model's weights digest would: the same agent for every prompt and every run."""

MAX_FIELDS = 3  # what the form of every level takes
CARELESS = 0.1  # chance that a message ignores what the prompt says

_COMPANY = re.compile(r"[A-Z][a-z]+ [A-Z][a-z]+ [A-Z][a-z]+")
_REQUEST = re.compile(r"\bR\d+\b")
_LINE = re.compile(r"([A-Z][a-z]+) (555-\d{4})")
_NEED = re.compile(r"([A-Z][a-z]+):? (?:needs|asks for|wants):? ([a-z0-9_]+(?:, [a-z0-9_]+)*)")
_ABSENT = re.compile(r"(?:no|without|lacks|not) ")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a prompt says."""

    company: str  # as the customer names it
    request: str  # id of the request
    lines: dict[str, str]  # department -> number, empty before a search has found them
    needs: dict[str, tuple[str, ...]]  # department -> fields that it, or feedback, last said are missing
    form: dict[str, str] | None  # field -> value that the form said, the first of two; None before the form
    calls: tuple[str, ...]  # numbers called in this attempt, in order


def read(prompt_text: str) -> Reading:
    """Returns what a prompt in the compact style says; total, whatever the text."""
    opening, *turns = [part.strip() for part in prompt_text.split(STOP_TOKEN)]
    company, request = _COMPANY.search(opening), _REQUEST.search(opening)
    lines: dict[str, str] = {}
    needs = _needs(opening)
    form: dict[str, str] | None = None
    calls = []
    command = ""
    for turn in turns:
        mark, _, text = turn.partition(" ")
        if mark == "A:":
            command = text
            if command.startswith("call "):
                calls += command.split()[1:2]
        elif mark == "T:" and command.startswith("search"):
            lines |= dict(_LINE.findall(text))
        elif mark == "T:" and command.startswith("form"):
            form = form or _given(text)
        elif mark == "T:":
            needs |= _needs(text)
    name, request_id = company.group() if company else "", request.group() if request else "R1"
    return Reading(name, request_id, lines, needs, form, tuple(calls))


def reply_text(prompt_text: str, rng: Random) -> str:
    """Returns the agent's next message to a compact prompt, without the stop token; `rng` decides slips."""
    seen = read(prompt_text)
    is_careless = rng.random() < CARELESS
    if not seen.lines:
        words = seen.company.split() or ["company"]
        return "search " + " ".join(words[:2] if is_careless else words)
    told = [name for name in seen.needs if name in seen.lines]
    if seen.form is None:
        if told and not is_careless:
            return "form " + " ".join(seen.needs[told[-1]][:MAX_FIELDS])
        if seen.calls or rng.random() < 0.5:
            return "form " + " ".join(rng.sample(FIELDS, 2))
        return f"call {rng.choice(list(seen.lines.values()))} {seen.request}"
    if is_careless or len(seen.calls) > 3:
        return "done"
    untried = [number for number in seen.lines.values() if number not in seen.calls]
    number = seen.lines[told[-1]] if told else rng.choice(untried or list(seen.lines.values()))
    return " ".join(["call", number, seen.request, *seen.form])


def _needs(text: str) -> dict[str, tuple[str, ...]]:
    found = (
        (name, tuple(field for field in fields.split(", ") if field in FIELDS))
        for name, fields in _NEED.findall(text)
    )
    return {name: fields for name, fields in found if fields}


def _given(text: str) -> dict[str, str]:
    """Returns the fields that a form's answer gives values for, each with the one that it says first."""
    given = "" if _ABSENT.match(text) else text.split(";")[0]
    found: dict[str, str] = {}
    for name, value in re.findall(r"(\w+) (?:is )?([^\s,;]+)", given):
        if name in FIELDS:
            found.setdefault(name, value)
    return found
