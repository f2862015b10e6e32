"""Identification rules as minimal sets of fields, and what a line discloses when they are not met."""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from random import Random

from env.phone.world.levels import Level
from env.phone.world.lexicon import FIELDS, INDUSTRIES, PRIORS, REFERENCE, STRICT_KINDS
from pipeline.ids import digest

MAX_MINIMAL_SETS = 6
"""Most sets that any k of n fields may come to."""

FieldSet = frozenset[str]
Sets = tuple[FieldSet, ...]
"""What a line wants: any of these sets of fields, none of which contains another, in a fixed order."""


def minimal_sets(options: Iterable[Iterable[str]]) -> Sets:
    """Returns the options that contain no other one, in a fixed order.

    Example:
        >>> [sorted(s) for s in minimal_sets([("a", "b"), ("b",)])]
        [['b']]
    """
    unique = {frozenset(option) for option in options}
    return tuple(sorted((s for s in unique if not any(other < s for other in unique)), key=sorted))


def satisfied(sets: Sequence[FieldSet], given: Set[str]) -> bool:
    """Returns whether the given fields contain a minimal set."""
    return any(needed <= given for needed in sets)


def sufficient_forms(rules: Sequence[Sequence[FieldSet]], available: Set[str], most_fields: int) -> Sets:
    """Returns every union of one minimal set per line that the customer can give, the smallest first.

    A reference comes from a line and takes no room in the form of at most `most_fields`.

    Example:
        >>> rules = [[frozenset("ab")], [frozenset("b"), frozenset("c")]]
        >>> [sorted(form) for form in sufficient_forms(rules, set("abc"), 3)]
        [['a', 'b'], ['a', 'b', 'c']]
    """
    unions: set[FieldSet] = {frozenset()}
    for sets in rules:
        possible = [needed - {REFERENCE} for needed in sets]
        possible = [needed for needed in possible if needed <= available]
        unions = {
            union for so_far in unions for needed in possible if len(union := so_far | needed) <= most_fields
        }
    return tuple(sorted(unions, key=lambda form: (len(form), sorted(form))))


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What a line says when an identification is incomplete."""

    kind: str = ""  # how it speaks: all, first, count or vague
    missing: tuple[str, ...] = ()  # fields it names, in a fixed order
    others: tuple[tuple[str, ...], ...] = ()  # the other minimal sets, where they are named
    count: int | None = None  # how many fields are neither given nor offered, where only that is said
    is_enough: bool = False  # whether it says that what was offered will do


_ORDER = (*FIELDS, REFERENCE)


def ordered(fields: Set[str]) -> tuple[str, ...]:
    """Returns field names in the order of `FIELDS`, a reference last."""
    return tuple(field for field in _ORDER if field in fields)


def disclose(kind: str, sets: Sequence[FieldSet], given: Set[str], offered: Set[str]) -> Disclosure:
    """Returns what a line says of the set nearest to what it heard: fewest fields lacking, then smallest.

    `all` names what is missing, offered or not, and the other sets. `first` names the next field and `count`
    says how many, of those not even offered, so that offers peel a rule field by field or confirm a guess.
    `vague` says nothing.
    """
    known = given | offered
    best = min(sets, key=lambda needed: (len(needed - known), len(needed), sorted(needed)))
    unheard = ordered(best - known)
    match kind:
        case "all":
            return Disclosure(kind, ordered(best - given), tuple(ordered(s) for s in sets if s != best))
        case "first":
            return Disclosure(kind, unheard[:1], is_enough=not unheard)
        case "count":
            return Disclosure(kind, count=len(unheard), is_enough=not unheard)
        case _:
            return Disclosure(kind)


def prior_fields(industry: str, kind: str, level: Level) -> tuple[str, ...]:
    """Returns the fields that the industry's prior predicts for a kind of department."""
    wanted = level.num_fields_strict if kind in STRICT_KINDS else level.num_fields
    return tuple(INDUSTRIES[industry][slot] for slot in PRIORS[kind][:wanted])


def half_of(industry: str, fields: Set[str]) -> str:
    """Returns which half of the companies, "train" or "test", may depart from the prior with these fields."""
    return ("train", "test")[int(digest("deviation", industry, sorted(fields)), 16) % 2]


def deviation_pool(industry: str, kind: str, level: Level, half: str) -> tuple[tuple[str, ...], ...]:
    """Returns the departures from the prior that one half may draw: a field replaced or added; sorted.

    The halves "train" and "test" share none, so a deviation met in training never decides a test task.
    """
    usual = prior_fields(industry, kind, level)
    return _departures(industry, usual, len(usual) < level.max_form_fields, half)


@cache
def _departures(
    industry: str, usual: tuple[str, ...], may_add: bool, half: str
) -> tuple[tuple[str, ...], ...]:
    spare = [field for field in FIELDS if field not in usual]
    replaced = [
        (*usual[:place], field, *usual[place + 1 :]) for place in range(1, len(usual)) for field in spare
    ]
    added = [(*usual, field) for field in spare] if may_add else []
    rules = {frozenset(rule): rule for rule in replaced + added}
    return tuple(sorted(rule for fields, rule in rules.items() if half_of(industry, fields) == half))


def draw_rule(
    rng: Random, industry: str, kind: str, level: Level, half: str, shifted: bool
) -> tuple[Sets, bool]:
    """Returns what a department wants, and whether the set drawn first departs from the industry's prior.

    Sets that depart from the prior, alternatives among them, come from the company's own half, "train" or
    "test". `shifted` permutes the kind's slots, so that the learned prior is wrong.
    """
    usual = prior_fields(industry, kind, level)
    if not usual:
        return (frozenset(),), False
    slots = tuple(INDUSTRIES[industry].values())
    first, deviates = usual, True
    if shifted:
        choices = [chosen for chosen in combinations(slots, len(usual)) if set(chosen) != set(usual)]
        own = [chosen for chosen in choices if half_of(industry, set(chosen)) == half]
        # One field alone is no training company's deviation, so an empty half costs nothing there.
        first = rng.choice(own or choices)
    elif deviates := rng.random() < level.deviates:
        pool = deviation_pool(industry, kind, level, half)
        replaced = [rule for rule in pool if len(rule) == len(usual)]
        added = [rule for rule in pool if len(rule) > len(usual)]
        wanted = replaced if rng.random() < 2 / 3 else added
        first = rng.choice(wanted or replaced or added)

    def is_own(fields: FieldSet) -> bool:
        if fields == set(usual):
            return not shifted
        return fields == set(first) or half_of(industry, fields) == half

    if level.second_alternative == level.k_of_n == 0:
        return minimal_sets([first]), deviates
    return _widened(rng, first, slots, level, is_own), deviates


def _widened(
    rng: Random,
    first: tuple[str, ...],
    slots: tuple[str, ...],
    level: Level,
    is_own: Callable[[FieldSet], bool],
) -> Sets:
    """Returns the first set with an alternative, or any k of n fields, where its half has such a rule."""
    roll = rng.random()
    rules: list[Sets] = []
    if roll < level.second_alternative:
        others = list(combinations(slots, len(first)))
        if rng.random() < 0.5:  # half of the alternatives hold a field that the industry does not use
            spare = [field for field in FIELDS if field not in slots]
            others = [(*chosen, field) for chosen in combinations(slots, len(first) - 1) for field in spare]
        rules = [minimal_sets((first, other)) for other in others if set(other) != set(first)]
    elif roll < level.second_alternative + level.k_of_n and len(first) < MAX_MINIMAL_SETS:
        extras = [field for field in FIELDS if field not in first]
        rules = [minimal_sets(combinations((*first, extra), len(first))) for extra in extras]
    own = [sets for sets in rules if all(map(is_own, sets))]
    return rng.choice(own) if own else minimal_sets([first])
