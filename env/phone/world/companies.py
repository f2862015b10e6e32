"""Companies, made from their keys: names, numbers, departments, rules, and what their customers may want."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from random import Random

from env.phone.world import lexicon
from env.phone.world.levels import Level, level_settings
from env.phone.world.rules import Sets, draw_rule, sufficient_forms

PHONES_PER_COMPANY = 7  # the most departments that any level lists
MAX_COMPANIES = 1400


@dataclass(frozen=True, slots=True)
class Department:
    """One line of a company."""

    name: str  # as the directory lists it
    kind: str  # what it serves
    phone: str  # unique over all companies of a seed
    description: str  # a few words in the directory
    sets: Sets  # what identifies a customer there; each holds `REFERENCE` where the line wants one
    disclosure: str = "all"  # how it says what is missing
    screen_first: bool = True  # whether it checks what it serves before who is calling
    deviates: bool = False  # whether the first set that was drawn departs from the industry's prior
    hours: str = "24h"  # or "day", for a line that may open late
    after: str = ""  # kind of the department that must have referred the customer, if any
    wants_reference: bool = False  # whether it wants the reference that this department gives


@dataclass(frozen=True, slots=True)
class Company:
    """One company: fixed rules, one level."""

    name: str
    industry: str
    level: int
    departments: tuple[Department, ...]
    vocabulary: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompanyKey:
    """What a company is made from."""

    seed: int  # of the whole set of tasks
    index: int  # place among all companies
    level: int
    industry: str
    half: str  # "train" or "test": which deviating rules it may have
    shifted: bool  # whether its slot lists are permuted


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
    """Returns a name of its own for every index: all words as often, so that none can be recited."""
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

    Every exchange deals its own extensions. Dealt alike in all, the companies of a split would share a few of
    them, and digits that a small policy copies badly would make one split harder than another.
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
    for phone, kind in zip(phones, kinds, strict=False):
        sets, deviates = draw_rule(rng, key.industry, kind, level, key.half, key.shifted)
        after = level.edges.get(kind, "")
        after = after if after in kinds else ""
        wants_reference = bool(after) and kind in level.tokens
        departments.append(
            Department(
                name=rng.choice(lexicon.DEPARTMENT_NAMES[kind]),
                kind=kind,
                phone=phone,
                description=rng.choice(lexicon.DESCRIPTIONS[kind]),
                sets=tuple(needed | {lexicon.REFERENCE} for needed in sets) if wants_reference else sets,
                disclosure=rng.choices(list(level.disclosure), list(level.disclosure.values()))[0],
                screen_first=rng.random() < level.screen_first,
                deviates=deviates,
                hours=more.choice(lexicon.HOURS),
                after=after,
                wants_reference=wants_reference,
            )
        )
    if level.has_twins:
        other = more.choice([line for line in departments if lexicon.PRIORS[line.kind]])
        description = more.choice(lexicon.TWIN_DESCRIPTIONS)
        # It has the other one's name and serves no customer of ours.
        departments.append(
            Department(other.name, "sales", phones[len(departments)], description, sets=(frozenset(),))
        )
    vocabulary = set(lexicon.INDUSTRIES[key.industry].values())
    vocabulary |= {field for line in departments for needed in line.sets for field in needed}
    vocabulary.discard(lexicon.REFERENCE)
    spare = [field for field in lexicon.FIELDS if field not in vocabulary]
    vocabulary |= set(rng.sample(spare, max(0, level.vocabulary - len(vocabulary))))
    return Company(
        name=company_name(key.seed, key.index),
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


Opening = tuple[tuple[tuple[str, str], ...], str]
"""What a task opens with: (kind, errand) of each request, and the phrase."""


@lru_cache(maxsize=4096)
def openings(key: CompanyKey) -> tuple[Opening, ...]:
    """Returns all that a task of the company may open with, in the company's order."""
    level = level_settings(key.level)
    company = make_company(key)
    rng = Random(f"{key.seed}:openings:{key.index}")
    found: list[Opening] = []
    if level.num_needed == (1, 1):
        found = [
            (((line.kind, errand),), phrase)
            for line in company.departments
            if line.kind in lexicon.ERRANDS
            for errand in lexicon.ERRANDS[line.kind]
            for phrase in lexicon.REQUEST_PHRASES
        ]
    else:
        for kinds in _request_kinds(company, level):
            order = rng.sample(kinds, len(kinds))
            errands = [rng.sample(lexicon.ERRANDS[kind], len(lexicon.ERRANDS[kind])) for kind in order]
            phrases = lexicon.REQUEST_PHRASES if len(order) == 1 else lexicon.SEVERAL_REQUESTS_PHRASES
            for wanted in zip(*errands, strict=True):
                found += [(tuple(zip(order, wanted, strict=True)), phrase) for phrase in phrases]
    rng.shuffle(found)
    return tuple(found)


def _request_kinds(company: Company, level: Level) -> list[tuple[str, ...]]:
    """Returns the kinds that may be wanted together: lines in number, and one form that could do for all."""
    departments = company.departments
    served = [line.kind for line in departments if line.kind in lexicon.ERRANDS]
    least, most = level.num_requests
    found = []
    for count in range(least, most + 1):
        for kinds in combinations(served, count):
            lines = {line for kind in kinds for line in path_to(departments, kind)}
            rules = [line.sets for line in lines]
            if level.num_needed[0] <= len(lines) <= level.num_needed[1] and sufficient_forms(
                rules, set(company.vocabulary), level.max_form_fields
            ):
                found.append(kinds)
    return found
