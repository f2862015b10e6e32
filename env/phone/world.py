"""A task's world, rebuilt from its generator key: company, departments, requests, customer."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Any

from env.phone import lexicon
from env.phone.forms import sufficient_forms
from env.phone.levels import LEVELS, Level, level_settings
from env.phone.rules import AllOf, FieldSet, Rule, Token, draw_rule, minimal_sets
from pipeline.ids import canonical_json

GENERATOR_VERSION = 2
PHONES_PER_COMPANY = 7  # the most departments that any level lists
MAX_COMPANIES = 1400


@dataclass(frozen=True, slots=True)
class Department:
    """One line of a company.

    Attributes:
        name: as the directory lists it.
        kind: what it serves.
        phone: its number, unique over all companies of a seed.
        description: a few words in the directory.
        rule: what it wants for identification.
        sets: the rule's minimal sets, with `REFERENCE` in each where it wants one.
        disclosure: how it says what is missing.
        screen_first: whether it checks what it serves before who is calling.
        deviates: whether the rule departs from the industry's prior.
        hours: "24h", or "day" for a line that may open late.
        after: kind of the department that must have referred the customer, or "".
        token: whose reference it wants, if any.
    """

    name: str
    kind: str
    phone: str
    description: str
    rule: Rule
    sets: tuple[FieldSet, ...]
    disclosure: str
    screen_first: bool
    deviates: bool
    hours: str = "24h"
    after: str = ""
    token: Token | None = None


@dataclass(frozen=True, slots=True)
class Company:
    """One company: fixed rules, one level."""

    name: str
    aliases: tuple[str, ...]
    industry: str
    level: int
    departments: tuple[Department, ...]
    vocabulary: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One thing the customer wants, and the only kind of department that serves it."""

    request_id: str
    kind: str
    errand: str


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a task fixes.

    Attributes:
        company: who is called.
        requests: what for.
        profile: field -> value, for every field that the customer can give.
        user: cooperative, partial or difficult.
        opening: the customer's words.
        busy: numbers that put their first caller on hold.
        closings: (number, tick) of each line that opens only then.
        slips: (field, wrong value) of each field for which the customer first says a wrong one.
    """

    company: Company
    requests: tuple[Request, ...]
    profile: dict[str, str]
    user: str
    opening: str
    busy: frozenset[str] = frozenset()
    closings: tuple[tuple[str, int], ...] = ()
    slips: tuple[tuple[str, str], ...] = ()

    @property
    def level(self) -> Level:
        """Settings of the company's level."""
        return level_settings(self.company.level)

    def department_at(self, phone: str) -> Department | None:
        """Returns the department with this number, or None."""
        return next((line for line in self.company.departments if line.phone == phone), None)

    def server_of(self, request: Request) -> Department:
        """Returns the department that serves a request."""
        return next(line for line in self.company.departments if line.kind == request.kind)

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


def path_to(departments: Sequence[Department], kind: str) -> tuple[Department, ...]:
    """Returns the departments that lead to one of a kind, it included."""
    path: tuple[Department, ...] = ()
    while kind:
        line = next(line for line in departments if line.kind == kind)
        path = (line, *path)
        kind = line.after
    return path


@dataclass(frozen=True, slots=True)
class CompanyKey:
    """What a company is made from.

    Attributes:
        seed: of the whole set of tasks.
        index: place among all companies.
        level: difficulty.
        industry: its industry.
        half: "train" or "test": which deviating rules it may have.
        shifted: whether its slot lists are permuted.
    """

    seed: int
    index: int
    level: int
    industry: str
    half: str
    shifted: bool


@dataclass(frozen=True, slots=True)
class WorldKey:
    """What a task's world is made from: all that `Task.ground_truth` holds.

    Attributes:
        company: the company's key.
        opening: place in the company's list of openings (request, errand, phrase).
        number: of the task within its company; decides the customer.
        draw: 0, or how often an unsolvable world was drawn again.
    """

    company: CompanyKey
    opening: int
    number: int
    draw: int = 0

    def to_text(self) -> str:
        """Returns the key as canonical JSON."""
        c = self.company
        half = [c.half, int(c.shifted)]
        return canonical_json(
            {
                "version": GENERATOR_VERSION,
                "company": [c.seed, c.index, c.level, c.industry, *half],
                "task": [self.opening, self.number, self.draw],
            }
        )

    @staticmethod
    def from_text(text: str) -> WorldKey:
        """Returns the key that `to_text` wrote.

        Raises:
            ValueError: the text is no key of this generator, or of a company or task that cannot be.
        """
        try:
            data = json.loads(text)
            version = data["version"]
            seed, index, level, industry, half, shifted = data["company"]
            opening, number, draw = data["task"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"ground_truth {text[:80]!r} is no key of a phone world; run: make tasks"
            ) from error
        if version != GENERATOR_VERSION:
            raise ValueError(
                f"ground_truth: generator version {version}, this is {GENERATOR_VERSION}; run: make tasks"
            )
        for name, value in (("seed", seed), ("number", number), ("draw", draw)):
            _check(name, value, type(value) is int and value >= 0, "0 or more")
        _check("index", index, type(index) is int and 0 <= index < MAX_COMPANIES, f"0 to {MAX_COMPANIES - 1}")
        for name, value, known in (
            ("level", level, tuple(LEVELS)),
            ("industry", industry, tuple(lexicon.INDUSTRIES)),
            ("half", half, ("train", "test")),
            ("shifted", shifted, (0, 1)),
        ):
            is_known = type(value) is type(known[0]) and value in known
            _check(name, value, is_known, ", ".join(map(str, known)))
        company = CompanyKey(seed, index, level, industry, half, bool(shifted))
        most = len(openings(company)) - 1
        _check("opening", opening, type(opening) is int and 0 <= opening <= most, f"0 to {most}")
        return WorldKey(company, opening, number, draw)


def _check(name: str, value: object, is_right: bool, allowed: str) -> None:
    if not is_right:
        raise ValueError(f"ground_truth: {name} is {str(value)[:30]!r}; allowed: {allowed}; run: make tasks")


@lru_cache(maxsize=8)
def _word_orders(seed: int) -> tuple[tuple[str, ...], ...]:
    rng = Random(f"{seed}:names")
    lists = (lexicon.FIRST_WORDS, lexicon.SECOND_WORDS, lexicon.THIRD_WORDS)
    return tuple(tuple(rng.sample(words, len(words))) for words in lists)


def company_name(seed: int, index: int) -> str:
    """Returns the name of a company: another one for every index, every word as often as any other.

    A word is followed by all others alike, so a name has to be copied and cannot be recited.
    """
    firsts, seconds, thirds = _word_orders(seed)
    a, b, c = index % 12, index // 12 % 12, index // 144
    return f"{firsts[a]} {seconds[(a + b) % 12]} {thirds[(3 * a + 7 * b + c) % 10]}"


@lru_cache(maxsize=512)
def _digit_pairs(seed: int, what: str) -> tuple[str, ...]:
    pairs = [f"{number:02d}" for number in range(100)]
    Random(f"{seed}:{what}").shuffle(pairs)
    return tuple(pairs)


def _phones(key: CompanyKey) -> list[str]:
    """Returns the numbers a company owns: one exchange of two digits, and extensions nobody shares there.

    As in life, its lines differ in the last digits only. So the first two can be read off any of its lines,
    and only the extension says which line it is. Extensions are dealt anew in every exchange: dealt alike in
    all, the companies of a split would share a few of them, and digits that a small policy copies badly would
    make one split harder than another.
    """
    turn, place = divmod(key.index, 100)
    exchange = _digit_pairs(key.seed, "exchanges")[place]
    dealt = _digit_pairs(key.seed, f"extensions of {exchange}")
    extensions = list(dealt[turn * PHONES_PER_COMPANY :][:PHONES_PER_COMPANY])
    Random(f"{key.seed}:phones:{key.index}").shuffle(extensions)
    return [f"555-{exchange}{extension}" for extension in extensions]


@lru_cache(maxsize=4096)
def make_company(key: CompanyKey) -> Company:
    """Returns the company of a key: a pure function."""
    level = level_settings(key.level)
    rng = Random(f"{key.seed}:company:{key.index}")
    more = Random(f"{key.seed}:routing:{key.index}")
    kinds = _kinds(rng, more, key.industry, level)
    phones = _phones(key)
    departments = []
    for place, kind in enumerate(kinds):
        rule, deviates = draw_rule(rng, key.industry, kind, level, key.half, key.shifted)
        after = level.edges.get(kind, "")
        after = after if after in kinds else ""
        token = Token(after) if after and kind in level.tokens else None
        departments.append(
            Department(
                name=rng.choice(lexicon.DEPARTMENT_NAMES[kind]),
                kind=kind,
                phone=phones[place],
                description=rng.choice(lexicon.DESCRIPTIONS[kind]),
                rule=rule,
                sets=minimal_sets(rule, token),
                disclosure=rng.choices(list(level.disclosure), list(level.disclosure.values()))[0],
                screen_first=rng.random() < level.screen_first,
                deviates=deviates,
                hours=more.choice(lexicon.HOURS),
                after=after,
                token=token,
            )
        )
    if level.has_twins:
        departments.append(_twin(more, departments, phones[len(departments)]))
    vocabulary = set(lexicon.INDUSTRIES[key.industry].values())
    vocabulary |= {field for line in departments for needed in line.sets for field in needed}
    vocabulary.discard(lexicon.REFERENCE)
    spare = [field for field in lexicon.FIELDS if field not in vocabulary]
    vocabulary |= set(rng.sample(spare, max(0, level.vocabulary - len(vocabulary))))
    name = company_name(key.seed, key.index)
    return Company(
        name=name,
        aliases=(name.replace(" ", ""),),
        industry=key.industry,
        level=key.level,
        departments=tuple(departments),
        vocabulary=tuple(field for field in lexicon.FIELDS if field in vocabulary),
    )


def _kinds(rng: Random, more: Random, industry: str, level: Level) -> list[str]:
    """Returns the kinds of department that a company lists; where calls are routed, some route is listed."""
    kinds = list(lexicon.INDUSTRY_KINDS[industry])
    wanted = [kind for kind in kinds if lexicon.PRIORS[kind]]
    rng.shuffle(wanted)
    if level.edges:
        routed = more.choice([kind for kind in wanted if level.edges.get(kind) == "customer_service"])
        first = ["customer_service", routed]
    else:
        first = wanted[:1]  # serves something; sales may take one of the other places
    rest = [kind for kind in wanted if kind not in first] + [k for k in kinds if not lexicon.PRIORS[k]]
    rng.shuffle(rest)
    count = more.randint(*level.num_departments) - level.has_twins
    return first + rest[: count - len(first)]


def _twin(rng: Random, departments: Sequence[Department], phone: str) -> Department:
    """Returns a line that has another one's name and serves no customer of ours."""
    other = rng.choice([line for line in departments if lexicon.PRIORS[line.kind]])
    return Department(
        name=other.name,
        kind="sales",
        phone=phone,
        description=rng.choice(lexicon.TWIN_DESCRIPTIONS),
        rule=(rule := AllOf(())),
        sets=minimal_sets(rule),
        disclosure="all",
        screen_first=True,
        deviates=False,
    )


Opening = tuple[tuple[tuple[str, str], ...], str]
"""What a task opens with: (kind, errand) of each request, and the phrase."""


@lru_cache(maxsize=4096)
def openings(key: CompanyKey) -> tuple[Opening, ...]:
    """Returns all that a task of the company may open with, in the company's order."""
    level = level_settings(key.level)
    departments = make_company(key).departments
    rng = Random(f"{key.seed}:openings:{key.index}")
    found: list[Opening] = []
    if level.num_needed == (1, 1):
        found = [
            (((line.kind, errand),), phrase)
            for line in departments
            if line.kind in lexicon.ERRANDS
            for errand in lexicon.ERRANDS[line.kind]
            for phrase in lexicon.REQUEST_PHRASES
        ]
    else:
        for kinds in _request_kinds(departments, make_company(key).vocabulary, level):
            order = rng.sample(kinds, len(kinds))
            errands = [rng.sample(lexicon.ERRANDS[kind], len(lexicon.ERRANDS[kind])) for kind in order]
            phrases = lexicon.REQUEST_PHRASES if len(order) == 1 else lexicon.SEVERAL_REQUESTS_PHRASES
            for wanted in zip(*errands, strict=True):
                found += [(tuple(zip(order, wanted, strict=True)), phrase) for phrase in phrases]
    rng.shuffle(found)
    return tuple(found)


def _request_kinds(
    departments: Sequence[Department], vocabulary: Sequence[str], level: Level
) -> list[tuple[str, ...]]:
    """Returns the kinds that may be wanted together: lines in number, and one form that could do for all."""
    served = [line.kind for line in departments if line.kind in lexicon.ERRANDS]
    least, most = level.num_requests
    found = []
    for count in range(least, most + 1):
        for kinds in combinations(served, count):
            lines = {line for kind in kinds for line in path_to(departments, kind)}
            rules = [line.sets for line in lines]
            if level.num_needed[0] <= len(lines) <= level.num_needed[1] and sufficient_forms(
                rules, set(vocabulary), level.max_form_fields
            ):
                found.append(kinds)
    return found


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
    return replace(world, **_today(world, rng)) if level.has_wait else world


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


def _today(world: World, rng: Random) -> dict[str, Any]:
    """Returns who is busy, who opens late, and what the customer says wrong at first."""
    level = world.level
    busy, closings = set[str](), []
    for line in world.needed_lines():
        if rng.random() < level.on_hold:
            busy.add(line.phone)
        # Half of the lines have day hours, so those are closed twice as often as a line is.
        if rng.random() < 2 * level.closed and line.hours == "day":
            closings.append((line.phone, rng.randint(*level.opens)))
    slips: tuple[tuple[str, str], ...] = ()
    if world.user == "difficult":
        field = rng.choice([field for field in world.profile if field in world.needed_fields()])
        wrong = world.profile[field]
        while wrong in world.profile.values():
            wrong = _value(field, rng)
        slips = ((field, wrong),)
    return {"busy": frozenset(busy), "closings": tuple(closings), "slips": slips}


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
