from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from env.phone.world.levels import LEVELS
from env.phone.world.lexicon import FIELDS, INDUSTRY_KINDS, PRIORS
from env.phone.world.rules import (
    MAX_MINIMAL_SETS,
    disclose,
    draw_rule,
    half_of,
    minimal_sets,
    prior_fields,
    satisfied,
    sufficient_forms,
)

FEW = FIELDS[:7]
OPTIONS = st.lists(st.frozensets(st.sampled_from(FEW), min_size=1, max_size=4), min_size=1, max_size=6)
SETS = OPTIONS.map(minimal_sets)
SOME = st.frozensets(st.sampled_from(FEW))


@settings(deadline=None)
@given(OPTIONS, SOME, SOME)
def test_minimal_sets_are_satisfied_exactly_when_an_option_is_and_hold_no_other(options, have, more):
    sets = minimal_sets(options)
    assert satisfied(sets, have) == any(option <= have for option in options)
    assert not satisfied(sets, have) or satisfied(sets, have | more)
    assert not any(one < other for one in sets for other in sets)
    assert list(sets) == sorted(set(sets), key=sorted)


@settings(deadline=None)
@given(SETS, SOME, SOME)
def test_all_names_what_completes_the_identification_and_every_other_way(sets, have, offered):
    said = disclose("all", sets, have, offered)
    assert satisfied(sets, have | set(said.missing))
    ways = {frozenset(other) for other in said.others}
    assert ways < set(sets) | {frozenset()}
    assert len(ways) == len(sets) - 1


@settings(deadline=None)
@given(SETS)
def test_offers_peel_a_line_that_names_one_field_at_a_time(sets):
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
@given(SETS, SOME, SOME)
def test_count_says_how_many_fields_of_the_nearest_set_were_not_heard_and_vague_nothing(sets, have, offered):
    said = disclose("count", sets, have, offered)
    assert said.missing == ()
    assert said.count == min(len(needed - have - offered) for needed in sets)
    assert said.is_enough == satisfied(sets, have | offered)
    said = disclose("vague", sets, have, offered)
    assert (said.missing, said.others, said.count, said.is_enough) == ((), (), None, False)


@settings(deadline=None)
@given(st.lists(SETS, min_size=1, max_size=4), SOME, st.integers(1, 6))
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
            sets, deviates = draw_rule(rng, industry, kind, level, half, shifted)
            usual = frozenset(prior_fields(industry, kind, level))
            assert 1 <= len(sets) <= MAX_MINIMAL_SETS
            if not PRIORS[kind]:
                assert (sets, deviates) == ((frozenset(),), False)
                continue
            assert deviates or usual in sets
            assert not (shifted and usual in sets)
            if len(usual) > 1:  # one field alone is nobody's departure
                assert all(half_of(industry, needed) == half for needed in sets if needed != usual)
