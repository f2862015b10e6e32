"""A task's world, rebuilt from its generator key: company, departments, requests, customer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from env.phone import lexicon
from env.phone.levels import Level, level_settings
from env.phone.rules import FieldSet, Rule, draw_rule, minimal_sets
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
        sets: the rule's minimal sets.
        disclosure: how it says what is missing.
        screen_first: whether it checks what it serves before who is calling.
        deviates: whether the rule departs from the industry's prior.
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
        user: cooperative or partial.
        opening: the customer's words.
    """

    company: Company
    requests: tuple[Request, ...]
    profile: dict[str, str]
    user: str
    opening: str

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

    def needed_fields(self) -> FieldSet:
        """Returns every field that some needed line accepts."""
        lines = [self.server_of(request) for request in self.requests]
        return frozenset(field for line in lines for needed in line.sets for field in needed)


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
            ValueError: the text is no key of this generator.
        """
        try:
            data = json.loads(text)
            version = data["version"]
            seed, index, level, industry, half, shifted = data["company"]
            opening, number, draw = data["task"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"ground_truth {text[:80]!r} is no key of a phone world; run: make tasks"
            ) from error
        if version != GENERATOR_VERSION:
            raise ValueError(
                f"ground_truth: generator version {version}, this is {GENERATOR_VERSION}; run: make tasks"
            )
        return WorldKey(CompanyKey(seed, index, level, industry, half, bool(shifted)), opening, number, draw)


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
    kinds = list(lexicon.INDUSTRY_KINDS[key.industry])
    wanted = [kind for kind in kinds if lexicon.PRIORS[kind]]
    rng.shuffle(wanted)
    # The first kind always serves something; sales may take one of the other places.
    rest = wanted[1:] + [kind for kind in kinds if not lexicon.PRIORS[kind]]
    rng.shuffle(rest)
    chosen = [wanted[0], *rest[: level.num_departments - 1]]
    phones = _phones(key)
    departments = []
    for place, kind in enumerate(chosen):
        rule, deviates = draw_rule(rng, key.industry, kind, level, key.half, key.shifted)
        departments.append(
            Department(
                name=rng.choice(lexicon.DEPARTMENT_NAMES[kind]),
                kind=kind,
                phone=phones[place],
                description=rng.choice(lexicon.DESCRIPTIONS[kind]),
                rule=rule,
                sets=minimal_sets(rule),
                disclosure=rng.choices(list(level.disclosure), list(level.disclosure.values()))[0],
                screen_first=rng.random() < level.screen_first,
                deviates=deviates,
            )
        )
    vocabulary = set(lexicon.INDUSTRIES[key.industry].values())
    vocabulary |= {field for line in departments for needed in line.sets for field in needed}
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


def openings(key: CompanyKey) -> list[tuple[str, str, str]]:
    """Returns every (kind, errand, phrase) a task of the company may open with, in the company's order."""
    kinds = [line.kind for line in make_company(key).departments if line.kind in lexicon.ERRANDS]
    found = [
        (kind, errand, phrase)
        for kind in kinds
        for errand in lexicon.ERRANDS[kind]
        for phrase in lexicon.REQUEST_PHRASES
    ]
    Random(f"{key.seed}:openings:{key.index}").shuffle(found)
    return found


@lru_cache(maxsize=16384)
def make_world(key: WorldKey) -> World:
    """Returns the world of a key: a pure function; treat it as read-only."""
    company = make_company(key.company)
    level = level_settings(company.level)
    kind, errand, phrase = openings(key.company)[key.opening]
    request = Request("R1", kind, errand)
    rng = Random(f"{key.company.seed}:world:{key.company.index}:{key.number}:{key.draw}")
    user = rng.choices(list(level.users), list(level.users.values()))[0]
    profile = {field: _value(field, rng) for field in company.vocabulary}
    world = World(
        company=company,
        requests=(request,),
        profile=profile,
        user=user,
        opening=phrase.format(request=request.request_id, errand=errand, company=company.name),
    )
    if user == "partial":
        del profile[rng.choice([field for field in profile if field not in world.needed_fields()])]
    return world


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
