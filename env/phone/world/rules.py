"""Identification rules as minimal sets of fields, and what a line discloses when they are not met."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from random import Random

from env.phone.world.levels import Level
from env.phone.world.lexicon import FIELDS, INDUSTRIES, PRIORS, REFERENCE, STRICT_KINDS
from pipeline.ids import digest

MAX_MINIMAL_SETS = 6


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every one of these fields."""

    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Any one of these alternatives."""

    options: tuple[AllOf, ...]


@dataclass(frozen=True, slots=True)
class KOfN:
    """Any k of these fields."""

    k: int
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """Beside a rule: the reference that the department of this kind gives when it refers a customer on."""

    kind: str


Rule = AllOf | AnyOf | KOfN
FieldSet = frozenset[str]


def minimal_sets(rule: Rule, token: Token | None = None) -> tuple[FieldSet, ...]:
    """Returns the smallest sets of fields that satisfy a rule, none containing another, in a fixed order.

    Args:
        rule: what identifies the customer.
        token: with one, every set holds `REFERENCE` too.

    Raises:
        ValueError: more than `MAX_MINIMAL_SETS` of them.

    Example:
        >>> [sorted(s) for s in minimal_sets(AnyOf((AllOf(("a", "b")), AllOf(("b",)))))]
        [['b']]
    """
    match rule:
        case AllOf(fields):
            sets = [frozenset(fields)]
        case AnyOf(options):
            sets = [frozenset(option.fields) for option in options]
        case KOfN(k, fields):
            sets = [frozenset(chosen) for chosen in combinations(fields, k)]
    unique = set(sets)
    minimal = [s for s in unique if not any(other < s for other in unique)]
    if len(minimal) > MAX_MINIMAL_SETS:
        raise ValueError(f"{rule} has {len(minimal)} minimal sets; at most {MAX_MINIMAL_SETS} are allowed")
    extra = frozenset({REFERENCE}) if token else frozenset()
    return tuple(sorted((needed | extra for needed in minimal), key=sorted))


def satisfied(sets: Sequence[FieldSet], given: Set[str]) -> bool:
    """Returns whether the given fields contain a minimal set."""
    return any(needed <= given for needed in sets)


def nearest(sets: Sequence[FieldSet], given: Set[str], offered: Set[str]) -> FieldSet:
    """Returns the minimal set nearest to what was sent or offered: fewest fields lacking, then smallest."""
    known = given | offered
    return min(sets, key=lambda needed: (len(needed - known), len(needed), sorted(needed)))


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What a line says when an identification is incomplete.

    Attributes:
        kind: how it speaks: all, first, count or vague.
        missing: fields it names, in a fixed order; () when it names none.
        others: the other minimal sets, where they are named.
        count: how many fields are neither given nor offered, where only that is said.
        is_enough: whether it says that what was offered will do.
    """

    kind: str = ""
    missing: tuple[str, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    count: int | None = None
    is_enough: bool = False


_ORDER = (*FIELDS, REFERENCE)


def ordered(fields: Set[str]) -> tuple[str, ...]:
    """Returns field names in the order of `FIELDS`, a reference last."""
    return tuple(field for field in _ORDER if field in fields)


def disclose(kind: str, sets: Sequence[FieldSet], given: Set[str], offered: Set[str]) -> Disclosure:
    """Returns what a line of this disclosure kind says of the minimal set nearest to what it heard.

    `all` names what is missing, offered or not, and the other sets. `first` names the next field and `count`
    says how many, of those not even offered, so that offers peel a rule field by field or confirm a guess.
    `vague` says nothing.

    Raises:
        ValueError: unknown kind.
    """
    best = nearest(sets, given, offered)
    if kind == "all":
        return Disclosure(kind, ordered(best - given), tuple(ordered(s) for s in sets if s != best))
    unheard = ordered(best - given - offered)
    if kind == "first":
        return Disclosure(kind, unheard[:1], is_enough=not unheard)
    if kind == "count":
        return Disclosure(kind, count=len(unheard), is_enough=not unheard)
    if kind == "vague":
        return Disclosure(kind)
    raise ValueError(f"disclosure {kind!r}; known: all, first, count, vague")


def num_fields(kind: str, level: Level) -> int:
    """Returns how many fields a kind of department wants at a level, before any deviation."""
    return level.num_fields_strict if kind in STRICT_KINDS else level.num_fields


def prior_fields(industry: str, kind: str, level: Level) -> tuple[str, ...]:
    """Returns the fields that the industry's prior predicts for a kind of department."""
    return tuple(INDUSTRIES[industry][slot] for slot in PRIORS[kind][: num_fields(kind, level)])


def deviation_pool(industry: str, kind: str, level: Level, half: str) -> list[tuple[str, ...]]:
    """Returns the rules that depart from the prior and that one half of the companies may draw.

    The halves "train" and "test" share no rule, so a deviation met in training never decides a test task.

    Returns:
        Tuples of fields: a non-ID field replaced (two of three draws) or one field added; sorted.
    """
    usual = prior_fields(industry, kind, level)
    spare = [field for field in FIELDS if field not in usual]
    replaced = [
        (*usual[:place], field, *usual[place + 1 :]) for place in range(1, len(usual)) for field in spare
    ]
    added = [(*usual, field) for field in spare] if len(usual) < level.max_form_fields else []
    rules = {frozenset(rule): rule for rule in replaced + added}
    return sorted(rule for fields, rule in rules.items() if half_of(industry, fields) == half)


def half_of(industry: str, fields: Set[str]) -> str:
    """Returns which half of the companies, "train" or "test", may depart from the prior with these fields."""
    return ("train", "test")[int(digest("deviation", industry, sorted(fields)), 16) % 2]


def draw_rule(
    rng: Random, industry: str, kind: str, level: Level, half: str, shifted: bool
) -> tuple[Rule, bool]:
    """Returns a department's rule and whether its first set departs from the industry's prior.

    Sets that depart from the prior, alternatives among them, come from the company's own half.

    Args:
        rng: the company's random numbers.
        industry: of the company.
        kind: of the department.
        level: of the company.
        half: "train" or "test": which deviating rules may be drawn.
        shifted: permute the kind's slots, so that the learned prior is wrong.
    """
    usual = prior_fields(industry, kind, level)
    if not usual:
        return AllOf(()), False
    first, deviates = _draw_first(rng, usual, industry, kind, level, half, shifted)
    if level.second_alternative == level.k_of_n == 0:
        return AllOf(first), deviates
    return _widened(rng, first, usual, industry, level, half, shifted), deviates


def _draw_first(
    rng: Random,
    usual: tuple[str, ...],
    industry: str,
    kind: str,
    level: Level,
    half: str,
    shifted: bool,
) -> tuple[tuple[str, ...], bool]:
    """Returns the set of fields that a rule begins with, and whether it departs from the prior."""
    if shifted:
        slots = [INDUSTRIES[industry][slot] for slot in INDUSTRIES[industry]]
        choices = [chosen for chosen in combinations(slots, len(usual)) if set(chosen) != set(usual)]
        own = [chosen for chosen in choices if half_of(industry, set(chosen)) == half]
        # One field alone is no training company's deviation, so an empty half costs nothing there.
        return rng.choice(own or choices), True
    if rng.random() >= level.deviates:
        return usual, False
    pool = deviation_pool(industry, kind, level, half)
    replaced = [rule for rule in pool if len(rule) == len(usual)]
    added = [rule for rule in pool if len(rule) > len(usual)]
    wanted = replaced if rng.random() < 2 / 3 else added
    return rng.choice(wanted or replaced or added), True


def _widened(
    rng: Random,
    first: tuple[str, ...],
    usual: tuple[str, ...],
    industry: str,
    level: Level,
    half: str,
    shifted: bool,
) -> Rule:
    """Returns a rule that the first set satisfies: as it is, with an alternative, or any k of n fields.

    Where no alternative of the company's half exists, the rule stays as it is.
    """
    known = {frozenset(first)} if shifted else {frozenset(first), frozenset(usual)}

    def is_own(rule: Rule) -> bool:
        sets = [s for s in minimal_sets(rule) if s not in known]
        return all(half_of(industry, s) == half and not (shifted and s == set(usual)) for s in sets)

    roll = rng.random()
    slots = tuple(INDUSTRIES[industry].values())
    rules: list[Rule] = []
    if roll < level.second_alternative:
        others = list(combinations(slots, len(first)))
        if rng.random() < 0.5:  # half of the alternatives hold a field that the industry does not use
            spare = [field for field in FIELDS if field not in slots]
            others = [(*chosen, field) for chosen in combinations(slots, len(first) - 1) for field in spare]
        rules = [AnyOf((AllOf(first), AllOf(other))) for other in others if set(other) != set(first)]
    elif roll < level.second_alternative + level.k_of_n and len(first) < MAX_MINIMAL_SETS:
        extras = [field for field in FIELDS if field not in first]
        rules = [KOfN(len(first), (*first, extra)) for extra in extras]
    own = [rule for rule in rules if is_own(rule)]
    return rng.choice(own) if own else AllOf(first)
