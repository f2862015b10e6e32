"""Routing, references, holds, hours and lockouts: what a call comes to, check by check."""

from dataclasses import replace

import pytest

from env.phone.episode.calls import Sent, State, place_call, submit_form, wait
from env.phone.episode.rewards import episode_cost, potential
from env.phone.world.lexicon import REFERENCE
from pipeline.types import Event
from tests.env.phone.worlds import BILLING, FRAUD, SERVICE, small_world

ALL = Sent(given=frozenset({"email", "member_id", "full_name"}))
NOTHING = Sent()
CHAIN = {"billing": {"after": "customer_service"}, "fraud": {"after": "billing"}}


def after_form(world, *fields):
    return submit_form(world, State(), frozenset(fields))[0]


def call(world, state, phone, sent=ALL, request="R1"):
    return place_call(world, state, phone, request, sent)


def statuses(world, *calls, state=None):
    """Returns the state after calls (phone, what is sent, request), and what each came to."""
    state, found = state or State(), []
    for phone, *how in calls:
        state, outcome = call(world, state, phone, *how)
        found.append(outcome.status)
    return state, found


@pytest.mark.parametrize(("level", "first"), [(3, "Service"), (4, "")])
def test_a_line_that_comes_later_says_what_it_will_want_and_at_level_three_who_comes_first(level, first):
    state, outcome = call(small_world(level=level), State(), FRAUD, NOTHING)
    assert (outcome.status, outcome.other_department) == ("must_call_first", first)
    assert outcome.fields == {"email", "member_id"}
    assert state == State()


def test_referrals_are_followed_link_by_link_and_belong_to_one_request():
    world = small_world(wants=("fraud", "fraud"))
    state, outcome = call(world, State(), SERVICE)
    assert (outcome.status, outcome.other_department) == ("referred", "Fraud")
    assert state.referred == {("R1", SERVICE)}
    assert statuses(world, (FRAUD,), (FRAUD, ALL, "R2"), state=state)[1] == ["served", "must_call_first"]
    order = (BILLING, SERVICE, FRAUD, BILLING, FRAUD)
    found = statuses(small_world(level=4, lines=CHAIN), *((phone,) for phone in order))[1]
    assert found == ["must_call_first", "referred", "must_call_first", "referred", "served"]


def test_a_token_is_given_with_the_referral_and_wanted_beside_the_fields():
    world = small_world(level=4, lines={"fraud": {"wants_reference": True}})
    state, outcome = call(world, State(), SERVICE)
    assert outcome.gives_reference
    refused, told = call(world, state, FRAUD)
    assert (told.status, told.fields) == ("auth_missing", {REFERENCE})
    assert refused.strikes_of(FRAUD) == 1
    assert call(world, state, FRAUD, Sent(given=ALL.given | {REFERENCE}))[1].status == "served"
    assert not call(small_world(), State(), SERVICE)[1].gives_reference


@pytest.mark.parametrize(("phone", "screened"), [(FRAUD, "must_call_first"), (BILLING, "wrong_department")])
def test_screen_first_decides_what_is_checked_before_who_is_calling(phone, screened):
    for first, status in ((True, screened), (False, "auth_missing")):
        line = {"screen_first": first}
        world = small_world(level=4, lines={"billing": line, "fraud": line})
        state, outcome = call(world, State(), phone, NOTHING)
        assert outcome.status == status
        assert state.strikes_of(phone) == (not first)  # level 4: a probe is a strike, if it gets that far
        known = call(world, State(), phone)[1]
        assert (known.status, known.disclosure.kind == "") == (screened, phone == BILLING or not first)
    world = small_world(level=3, lines={"billing": {"screen_first": False}})
    assert call(world, State(), BILLING, NOTHING)[0] == State()  # at level 3 a probe is none


def test_a_wrong_line_names_the_right_one_at_level_three_and_passes_the_call_on_at_level_two():
    for level, named in ((3, "Fraud"), (5, "")):
        assert call(small_world(level=level), State(), BILLING)[1].other_department == named
    world = small_world(level=2, wants=("billing",), lines={"fraud": {"after": ""}})
    state, outcome = call(world, State(), FRAUD)
    assert (outcome.status, outcome.department, outcome.transferred_by) == ("served", "Billing", "Fraud")
    assert state.served == {"R1"}
    locked = State(strikes=((BILLING, 5),))
    assert call(world, locked, FRAUD)[1].status == "locked"


def test_the_first_call_to_a_busy_line_is_held_as_it_was_placed_and_a_new_call_drops_it():
    world = small_world(busy={SERVICE})
    held, outcome = call(world, State(), SERVICE)
    assert (outcome.status, held.held is None) == ("on_hold", False)
    state, outcome = wait(world, held)
    assert (outcome.status, state.held) == ("referred", None)
    assert call(world, held, SERVICE)[1].status == "referred"  # the line is busy once
    dropped, _ = call(world, held, BILLING, NOTHING)
    assert dropped.held is None
    assert wait(world, dropped)[1].status == "nothing_to_wait_for"
    asked = submit_form(world, call(world, State(), SERVICE, NOTHING)[0], {"email"})[0]
    assert wait(world, asked)[1].status == "auth_missing"


def test_a_closed_line_names_its_opening_takes_calls_from_then_on_and_can_be_waited_for():
    world = small_world(closings=((SERVICE, 5),), busy={SERVICE})
    state, outcome = call(world, State(tick=4), SERVICE)
    assert (outcome.status, outcome.opens) == ("closed", 5)
    assert state.rung == frozenset()  # hours come before the hold
    assert call(world, State(tick=5), SERVICE)[1].status == "on_hold"
    assert wait(world, State(tick=4))[1].status == "waited"
    assert wait(world, State(tick=5))[1].status == "nothing_to_wait_for"


@pytest.mark.parametrize(("level", "strikes"), [(1, 9), (2, 5), (3, 3), (4, 3)])
def test_a_line_locks_by_itself_but_never_at_level_one(level, strikes):
    world = small_world(level=level, wants=("billing",))
    wrong = (BILLING, Sent(given=frozenset({"email"})))
    state, found = statuses(world, *[wrong] * strikes, state=after_form(world, "email", "full_name"))
    assert (found, state.strikes_of(BILLING)) == (["auth_missing"] * strikes, strikes)
    found = statuses(world, (FRAUD,), (BILLING,), state=state)[1]
    assert [status == "locked" for status in found] == [level == 2, level > 1]  # there Fraud passes it on


def test_at_level_five_strikes_anywhere_lock_the_whole_company():
    world = small_world(level=5, lines={"billing": {"screen_first": False}})
    state, found = statuses(world, *[(SERVICE, NOTHING)] * 3, (BILLING, NOTHING), (SERVICE, NOTHING))
    assert found == ["auth_missing"] * 5
    assert statuses(world, (BILLING,), (FRAUD,), state=state)[1] == ["locked", "locked"]


def test_a_wrong_value_is_a_mismatch_unless_right_ones_do():
    for given, wrong, status in (("full_name", "email", "auth_mismatch"), ("email", "full_name", "referred")):
        sent = Sent(given=frozenset({given}), mismatched=frozenset({wrong}))
        assert call(small_world(), State(), SERVICE, sent)[1].status == status


@pytest.mark.parametrize(
    ("events", "cost"),
    [
        ([("must_call_first", 0, "Fraud")], 0.10),
        ([("probe", 0, "Fraud"), ("must_call_first", 0, "Fraud")], 0.03),
        ([("wrong_department", 0), ("form_too_long", 1)], 0.10),
        ([("on_hold", 0), ("closed", 1), ("referred", 2)], 0.0),
        ([("over_collected", 0, "", tuple("abcdefghij"))], 0.30),  # up to a cap
        ([("over_collected", 0, "", ("a",))], 0.05),
    ],
)
def test_prices_of_routing_and_of_over_collection(events, cost):
    assert episode_cost([Event(*event) for event in events]) == pytest.approx(cost)


def test_the_ladder_rises_rung_by_rung_and_is_zero_at_the_end():
    world = small_world(level=4, lines=CHAIN)
    forms = ((), ("last_payment",), ("email",), ("email", "full_name", "member_id"))
    rungs = [potential(world, after_form(world, *fields) if fields else State()) for fields in forms]
    state = after_form(world, "email", "full_name", "member_id")
    for phone in (SERVICE, BILLING):
        state, _ = call(world, state, phone)
        rungs.append(potential(world, state))
    assert rungs == [0.0, 0.0, 0.2, 0.3, 0.5, 0.7]
    assert potential(world, replace(state, ended=True)) == 0.0
    assert potential(world, replace(state, tick=world.level.max_turns)) == 0.0
    two = small_world(wants=("billing", "fraud"))
    served, _ = call(two, after_form(two, "full_name"), BILLING)
    assert potential(two, served) == pytest.approx(1 / 2)
