"""Companies, made from their keys: names, numbers, departments, rules, and what their customers may want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from random import Random

from env.phone.solver.forms import sufficient_forms
from env.phone.world import lexicon
from env.phone.world.levels import Level, level_settings
from env.phone.world.rules import AllOf, FieldSet, Rule, Token, draw_rule, minimal_sets

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
        token: department with the reference that it wants, if any.
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


def path_to(departments: Sequence[Department], kind: str) -> tuple[Department, ...]:
    """Returns the departments that lead to one of a kind, it included."""
    path: tuple[Department, ...] = ()
    while kind:
        line = next(line for line in departments if line.kind == kind)
        path = (line, *path)
        kind = line.after
    return path


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
    and only the extension says which line it is. Every exchange deals its own extensions: dealt alike in
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
