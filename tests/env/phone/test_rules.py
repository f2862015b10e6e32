"""Identification rules mean what they say, compile to few minimal sets, and disclose what leads to them."""

from __future__ import annotations

from itertools import combinations
from math import comb
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env.phone.solver.forms import sufficient_forms
from env.phone.world.levels import LEVELS
from env.phone.world.lexicon import FIELDS, INDUSTRY_KINDS, PRIORS, REFERENCE
from env.phone.world.rules import (
    MAX_MINIMAL_SETS,
    AllOf,
    AnyOf,
    KOfN,
    Token,
    disclose,
    draw_rule,
    half_of,
    minimal_sets,
    prior_fields,
    satisfied,
)

FEW = FIELDS[:7]
ALL_OF = st.lists(st.sampled_from(FEW), min_size=1, max_size=4, unique=True).map(lambda f: AllOf(tuple(f)))
ANY_OF = st.lists(ALL_OF, min_size=1, max_size=4).map(lambda options: AnyOf(tuple(options)))
K_OF_N = (
    st.lists(st.sampled_from(FEW), min_size=1, max_size=6, unique=True)
    .flatmap(lambda fields: st.tuples(st.integers(1, len(fields)), st.just(tuple(fields))))
    .filter(lambda pair: comb(len(pair[1]), pair[0]) <= MAX_MINIMAL_SETS)
    .map(lambda pair: KOfN(*pair))
)
RULES = st.one_of(ALL_OF, ANY_OF, K_OF_N)
SOME = st.frozensets(st.sampled_from(FEW))


def holds(rule, have):
    """The rule's meaning, without minimal sets."""
    match rule:
        case AllOf(fields):
            return all(field in have for field in fields)
        case AnyOf(options):
            return any(holds(option, have) for option in options)
        case KOfN(k, fields):
            return sum(field in have for field in fields) >= k


@settings(deadline=None)
@given(RULES, SOME)
def test_minimal_sets_are_satisfied_exactly_when_the_rule_holds(rule, have):
    assert satisfied(minimal_sets(rule), have) == holds(rule, have)


@settings(deadline=None)
@given(RULES)
def test_no_minimal_set_can_lose_a_field_or_holds_another(rule):
    sets = minimal_sets(rule)
    assert 1 <= len(sets) <= MAX_MINIMAL_SETS
    for needed in sets:
        assert holds(rule, needed)
        assert not any(holds(rule, needed - {field}) for field in needed)
    assert not any(one < other for one in sets for other in sets)
    assert list(sets) == sorted(sets, key=sorted)


@settings(deadline=None)
@given(RULES, SOME, SOME)
def test_more_fields_never_spoil_an_identification(rule, have, more):
    sets = minimal_sets(rule)
    assert not satisfied(sets, have) or satisfied(sets, have | more)


@settings(deadline=None)
@given(RULES, SOME)
def test_with_a_token_the_reference_is_needed_beside_the_rule(rule, have):
    sets = minimal_sets(rule, Token("customer_service"))
    assert not satisfied(sets, have)
    assert satisfied(sets, have | {REFERENCE}) == holds(rule, have)


def test_too_many_minimal_sets_are_refused():
    with pytest.raises(ValueError, match="10 minimal sets; at most 6"):
        minimal_sets(KOfN(2, FIELDS[:5]))


@settings(deadline=None)
@given(RULES, SOME, SOME)
def test_all_names_what_completes_the_identification_and_every_other_way(rule, have, offered):
    sets = minimal_sets(rule)
    said = disclose("all", sets, have, offered)
    assert satisfied(sets, have | set(said.missing))
    ways = {frozenset(other) for other in said.others}
    assert ways < set(sets) | {frozenset()}
    assert len(ways) == len(sets) - 1


@settings(deadline=None)
@given(RULES)
def test_offers_peel_a_line_that_names_one_field_at_a_time(rule):
    sets = minimal_sets(rule)
    offered: frozenset[str] = frozenset()
    for _ in range(max(map(len, sets)) + 1):
        said = disclose("first", sets, frozenset(), offered)
        if said.is_enough:
            break
        (field,) = said.missing
        assert field not in offered
        offered |= {field}
    assert said.is_enough
    assert offered in sets


@settings(deadline=None)
@given(RULES, SOME, SOME)
def test_count_says_how_many_fields_of_the_nearest_set_were_not_heard(rule, have, offered):
    sets = minimal_sets(rule)
    said = disclose("count", sets, have, offered)
    assert said.missing == ()
    assert said.count == min(len(needed - have - offered) for needed in sets)
    assert said.is_enough == satisfied(sets, have | offered)


def test_vague_says_nothing_and_an_unknown_kind_is_refused():
    sets = minimal_sets(AllOf(("email",)))
    said = disclose("vague", sets, frozenset(), {"email"})
    assert (said.missing, said.others, said.count, said.is_enough) == ((), (), None, False)
    with pytest.raises(ValueError, match="known: all, first, count, vague"):
        disclose("loud", sets, frozenset(), frozenset())


@settings(deadline=None)
@given(st.lists(RULES.map(minimal_sets), min_size=1, max_size=4), SOME, st.integers(1, 6))
def test_sufficient_forms_are_those_that_do_for_all_lines(rules, available, most):
    forms = sufficient_forms(rules, available, most)
    for form in forms:
        assert form <= available
        assert len(form) <= most
        assert all(satisfied(sets, form) for sets in rules)
    smallest = next(
        (
            size
            for size in range(min(most, len(available)) + 1)
            for some in combinations(sorted(available), size)
            if all(satisfied(sets, frozenset(some)) for sets in rules)
        ),
        None,
    )
    assert (len(forms[0]) if forms else None) == smallest


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 10**6), st.sampled_from(sorted(LEVELS)), st.sampled_from(["train", "test"]), st.booleans()
)
def test_what_departs_from_the_prior_is_drawn_from_the_companys_own_half(seed, number, half, shifted):
    level = LEVELS[number]
    rng = Random(seed)
    for industry, kinds in INDUSTRY_KINDS.items():
        for kind in kinds:
            rule, deviates = draw_rule(rng, industry, kind, level, half, shifted)
            usual = frozenset(prior_fields(industry, kind, level))
            sets = minimal_sets(rule)
            if not PRIORS[kind]:
                assert (sets, deviates) == ((frozenset(),), False)
                continue
            assert deviates or usual in sets
            assert not (shifted and usual in sets)
            if len(usual) > 1:  # one field alone is nobody's departure
                assert all(half_of(industry, needed) == half for needed in sets if needed != usual)
