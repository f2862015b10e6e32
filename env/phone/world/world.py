"""A task's world, rebuilt from its generator key: a company, requests, a customer, and what happens today."""

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Self

from env.phone.world import lexicon
from env.phone.world.companies import (
    MAX_COMPANIES,
    Company,
    CompanyKey,
    Department,
    make_company,
    openings,
    path_to,
)
from env.phone.world.levels import LEVELS, OPENS, Level, level_settings
from env.phone.world.rules import FieldSet, sufficient_forms
from pipeline.ids import canonical_json

GENERATOR_VERSION = 2

ALLOWED: dict[str, Sequence[object]] = {
    "seed": range(10**30),
    "index": range(MAX_COMPANIES),
    "level": tuple(LEVELS),
    "industry": tuple(lexicon.INDUSTRIES),
    "half": ("train", "test"),
    "shifted": (0, 1),
    "opening": range(10**9),
    "number": range(10**9),
    "draw": range(10**9),
}
"""What tasks may be made from, where it does not depend on the company."""


def refusal(value: object, allowed: Sequence[object]) -> str:
    """Returns what is allowed in place of a value, "" for one that is; True is no number."""
    kind = int if isinstance(allowed, range) else type(allowed[0])
    if type(value) is kind and value in allowed:
        return ""
    return f"0 to {allowed.stop - 1}" if isinstance(allowed, range) else ", ".join(map(str, allowed))


@dataclass(frozen=True, slots=True)
class Request:
    """One thing the customer wants, and the only kind of department that serves it."""

    request_id: str
    kind: str
    errand: str


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a task fixes."""

    company: Company
    requests: tuple[Request, ...]
    profile: dict[str, str]  # field -> value, for every field that the customer can give
    user: str  # cooperative, partial or difficult
    opening: str  # the customer's words
    busy: frozenset[str] = frozenset()  # numbers that put their first caller on hold
    closings: tuple[tuple[str, int], ...] = ()  # (number, tick) of each line that opens only then
    slips: tuple[tuple[str, str], ...] = ()  # (field, wrong value) that the customer says first

    @property
    def level(self) -> Level:
        """Settings of the company's level."""
        return level_settings(self.company.level)

    def department_at(self, phone: str) -> Department | None:
        """Returns the department with this number, or None."""
        return next((line for line in self.company.departments if line.phone == phone), None)

    def request(self, request_id: str) -> Request | None:
        """Returns the request with this id, or None."""
        return next((request for request in self.requests if request.request_id == request_id), None)

    def path(self, request: Request) -> tuple[Department, ...]:
        """Returns the lines to be called for a request, in order: those that refer it, then its server."""
        return path_to(self.company.departments, request.kind)

    def needed_lines(self) -> tuple[Department, ...]:
        """Returns the lines on any request's path, each once."""
        return tuple(dict.fromkeys(line for request in self.requests for line in self.path(request)))

    def needed_fields(self) -> FieldSet:
        """Returns every field of the form that some needed line accepts."""
        fields = {field for line in self.needed_lines() for needed in line.sets for field in needed}
        return frozenset(fields - {lexicon.REFERENCE})

    def opens_at(self, phone: str) -> int:
        """Returns the tick at which a line opens, 0 for one that is always open."""
        return next((opens for number, opens in self.closings if number == phone), 0)


@dataclass(frozen=True, slots=True)
class WorldKey:
    """What a task's world is made from: all that `Task.ground_truth` holds."""

    company: CompanyKey
    opening: int  # place in the company's list of openings (request, errand, phrase)
    number: int  # of the task within its company; decides the customer
    draw: int = 0  # how often an unsolvable world was drawn again

    def to_text(self) -> str:
        """Returns the key as canonical JSON."""
        c = self.company
        company = [c.seed, c.index, c.level, c.industry, c.half, int(c.shifted)]
        task = [self.opening, self.number, self.draw]
        return canonical_json({"version": GENERATOR_VERSION, "company": company, "task": task})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the key that `to_text` wrote; raises ValueError for any other text."""
        try:
            data = json.loads(text)
            version = data["version"]
            parts = ("seed", "index", "level", "industry", "half", "shifted")
            company = dict(zip(parts, data["company"], strict=True))
            task = dict(zip(("opening", "number", "draw"), data["task"], strict=True))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"ground_truth {text[:80]!r} is no key of a phone world; run: make tasks"
            ) from error
        if version != GENERATOR_VERSION:
            raise ValueError(
                f"ground_truth: generator version {version}, this is {GENERATOR_VERSION}; run: make tasks"
            )
        for name, value in (company | task).items():
            _check(name, value, ALLOWED[name])
        key = CompanyKey(**company | {"shifted": company["shifted"] == 1})
        _check("opening", task["opening"], range(len(openings(key))))
        return cls(key, **task)


def _check(name: str, value: object, allowed: Sequence[object]) -> None:
    if known := refusal(value, allowed):
        raise ValueError(f"ground_truth: {name} is {str(value)[:30]!r}; allowed: {known}; run: make tasks")


@lru_cache(maxsize=16384)
def make_world(key: WorldKey) -> World:
    """Returns the world of a key: a pure function; treat it as read-only."""
    company = make_company(key.company)
    level = level_settings(company.level)
    wants, phrase = openings(key.company)[key.opening]
    requests = tuple(Request(f"R{place}", *want) for place, want in enumerate(wants, start=1))
    rng = Random(f"{key.company.seed}:world:{key.company.index}:{key.number}:{key.draw}")
    user = rng.choices(list(level.users), list(level.users.values()))[0]
    profile = {field: _value(field, rng) for field in company.vocabulary}
    said = "; ".join(f"{request.request_id} {request.errand}" for request in requests)
    opening = phrase.format(
        request=requests[0].request_id, errand=requests[0].errand, requests=said, company=company.name
    )
    world = World(company, requests, profile, user, opening)
    if level.lacking and rng.random() < level.lacking:
        _forget(world, rng, among=world.needed_fields())
    if user == "partial":
        spare = set(profile) - (frozenset() if level.partial_is_needed else world.needed_fields())
        _forget(world, rng, among=spare)
    return _today(world, rng) if level.has_wait else world


def _forget(world: World, rng: Random, among: Set[str]) -> None:
    """Takes one of these fields from the profile; one without which no form would do is kept."""
    rules = [line.sets for line in world.needed_lines()]
    known = set(world.profile)
    spare = [
        field
        for field in world.profile
        if field in among and sufficient_forms(rules, known - {field}, world.level.max_form_fields)
    ]
    if spare:
        del world.profile[rng.choice(spare)]


def _today(world: World, rng: Random) -> World:
    """Returns the world with who is busy, who opens late, and what the customer says wrong at first."""
    level = world.level
    busy, closings = set[str](), []
    for line in world.needed_lines():
        if rng.random() < level.on_hold:
            busy.add(line.phone)
        # Half of the lines have day hours, so those are closed twice as often as a line is.
        if rng.random() < 2 * level.closed and line.hours == "day":
            closings.append((line.phone, rng.randint(*OPENS)))
    slips: tuple[tuple[str, str], ...] = ()
    if world.user == "difficult":
        field = rng.choice([field for field in world.profile if field in world.needed_fields()])
        wrong = world.profile[field]
        while wrong in world.profile.values():
            wrong = _value(field, rng)
        slips = ((field, wrong),)
    return replace(world, busy=frozenset(busy), closings=tuple(closings), slips=slips)


def _value(field: str, rng: Random) -> str:
    """Returns a short value without spaces: it has to fit a compact call."""
    match field:
        case "full_name":
            return f"{rng.choice(lexicon.FIRST_NAMES)}-{rng.choice(lexicon.LAST_NAMES)}"
        case "employer_name":
            return f"{rng.choice(lexicon.LAST_NAMES)}-Inc"
        case "email":
            return f"{rng.choice(lexicon.FIRST_NAMES).lower()}{rng.randrange(10, 100)}@mail"
        case "service_address":
            return f"{rng.randrange(1, 100)}-{rng.choice(lexicon.STREETS)}"
        case "security_answer" | "passphrase":
            return rng.choice(lexicon.SECRET_WORDS) + str(rng.randrange(10, 100))
        case "date_of_birth" | "contract_date" | "customer_since" | "card_expiry":
            return f"{rng.choice(lexicon.MONTHS)}-{rng.randrange(10, 100)}"
        case "last_payment":
            return f"${rng.randrange(10, 1000)}"
        case _:
            return f"{rng.randrange(10_000):04d}"
