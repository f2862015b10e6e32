"""Routing, references, holds, hours and lockouts: what a call comes to, check by check."""

from dataclasses import replace

import pytest

from env.phone.episode.calls import Sent, State, place_call, submit_form, tick, wait
from env.phone.episode.rewards import episode_cost, potential
from env.phone.solver.solver import Move, play
from env.phone.world.lexicon import REFERENCE
from pipeline.types import Event
from tests.env.phone.worlds import BILLING, FRAUD, SERVICE, small_world

ALL = Sent(given=frozenset({"email", "member_id", "full_name"}))
NOTHING = Sent()
CHAIN = {"billing": {"after": "customer_service"}, "fraud": {"after": "billing"}}


def after_form(world, *fields, tick_at=0):
    state = submit_form(world, State(), frozenset(fields))[0]
    return replace(state, tick=tick_at)


def call(world, state, phone, sent=ALL, request="R1"):
    return place_call(world, state, phone, request, sent)


@pytest.mark.parametrize(("level", "first"), [(3, "Service"), (4, "")])
def test_a_line_that_comes_later_says_what_it_will_want_and_at_level_three_who_comes_first(level, first):
    state, outcome = call(small_world(level=level), State(), FRAUD, NOTHING)
    assert (outcome.status, outcome.other_department) == ("must_call_first", first)
    assert outcome.fields == {"email", "member_id"}
    assert state == State()


def test_the_prerequisite_refers_each_request_on_by_itself():
    world = small_world(wants=("fraud", "fraud"))
    state, outcome = call(world, State(), SERVICE)
    assert (outcome.status, outcome.other_department) == ("referred", "Fraud")
    assert state.referred == {("R1", SERVICE)}
    assert call(world, state, FRAUD)[1].status == "served"
    assert call(world, state, FRAUD, request="R2")[1].status == "must_call_first"


def test_a_chain_is_followed_link_by_link():
    world = small_world(level=4, lines=CHAIN)
    state = State()
    assert call(world, state, BILLING)[1].status == "must_call_first"
    state, _ = call(world, state, SERVICE)
    assert call(world, state, FRAUD)[1].status == "must_call_first"
    state, outcome = call(world, state, BILLING)
    assert (outcome.status, outcome.other_department) == ("referred", "Fraud")
    assert call(world, state, FRAUD)[1].status == "served"


def test_a_token_is_given_with_the_referral_and_wanted_beside_the_fields():
    world = small_world(level=4, lines={"fraud": {"wants_reference": True}})
    state, outcome = call(world, State(), SERVICE)
    assert outcome.gives_reference
    refused, told = call(world, state, FRAUD)
    assert (told.status, told.fields) == ("auth_missing", {REFERENCE})
    assert refused.strikes_of(FRAUD) == 1
    assert call(world, state, FRAUD, Sent(given=ALL.given | {REFERENCE}))[1].status == "served"
    assert not call(small_world(), State(), SERVICE)[1].gives_reference


@pytest.mark.parametrize(
    ("phone", "screened", "unscreened"),
    [(FRAUD, "must_call_first", "auth_missing"), (BILLING, "wrong_department", "auth_missing")],
)
def test_screen_first_decides_what_is_checked_before_who_is_calling(phone, screened, unscreened):
    for first, status in ((True, screened), (False, unscreened)):
        line = {"screen_first": first}
        world = small_world(level=4, lines={"billing": line, "fraud": line})
        state, outcome = call(world, State(), phone, NOTHING)
        assert outcome.status == status
        assert state.strikes_of(phone) == (not first)  # level 4: a probe is a strike, if it gets that far
        known = call(world, State(), phone)[1].status
        assert known == screened


def test_an_identified_caller_hears_nothing_more_and_a_wrong_line_names_the_right_one_at_level_three():
    world = small_world(level=4, lines={"fraud": {"screen_first": False}})
    assert call(world, State(), FRAUD)[1].disclosure.kind == ""
    assert call(small_world(level=3), State(), BILLING)[1].other_department == "Fraud"
    assert call(small_world(level=5), State(), BILLING)[1].other_department == ""


def test_a_warm_transfer_goes_on_at_the_next_line_of_the_path():
    world = small_world(level=2, wants=("billing",), lines={"fraud": {"after": ""}})
    state, outcome = call(world, State(), FRAUD)
    assert (outcome.status, outcome.department, outcome.called) == ("served", "Billing", "Fraud")
    locked = replace(State(), strikes=((BILLING, 5),))
    assert call(world, locked, FRAUD)[1].status == "locked"
    assert state.served == {"R1"}


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
    state, outcome = call(world, replace(State(), tick=4), SERVICE)
    assert (outcome.status, outcome.opens) == ("closed", 5)
    assert state.rung == frozenset()  # hours come before the hold
    assert call(world, replace(State(), tick=5), SERVICE)[1].status == "on_hold"
    assert wait(world, replace(State(), tick=4))[1].status == "waited"
    assert wait(world, replace(State(), tick=5))[1].status == "nothing_to_wait_for"


@pytest.mark.parametrize("level", [3, 4])
def test_a_line_locks_by_itself(level):
    world = small_world(level=level)
    state = after_form(world, "full_name")
    for count in range(3):
        state, outcome = call(world, state, SERVICE, Sent(given=frozenset({"full_name"})))
        assert (outcome.status, state.strikes_of(SERVICE)) == ("auth_missing", count + 1)
    assert call(world, state, SERVICE)[1].status == "locked"
    assert call(world, state, BILLING)[1].status != "locked"


def test_at_level_five_strikes_anywhere_lock_the_whole_company():
    world = small_world(level=5)
    state = State()
    for phone, count in ((SERVICE, 3), (BILLING, 0), (SERVICE, 2)):
        for _ in range(count):
            state, _ = call(world, state, phone, NOTHING)
    assert call(world, state, BILLING)[1].status == "locked"
    assert call(world, state, FRAUD)[1].status == "locked"


@pytest.mark.parametrize(("level", "strikes"), [(3, 0), (4, 1), (5, 1)])
def test_a_probe_is_a_strike_from_level_four_on(level, strikes):
    world = small_world(level=level)
    assert call(world, State(), SERVICE, NOTHING)[0].strikes_of(SERVICE) == strikes


def test_a_wrong_value_is_a_mismatch_unless_right_ones_do():
    world = small_world()
    wrong = Sent(given=frozenset({"full_name"}), mismatched=frozenset({"email"}))
    assert call(world, State(), SERVICE, wrong)[1].status == "auth_mismatch"
    enough = Sent(given=frozenset({"email"}), mismatched=frozenset({"full_name"}))
    assert call(world, State(), SERVICE, enough)[1].status == "referred"


def test_prices_of_routing_and_of_over_collection_up_to_a_cap():
    skipped = Event("must_call_first", 0, "Fraud")
    assert episode_cost([skipped]) == pytest.approx(0.10)
    assert episode_cost([Event("probe", 0, "Fraud"), skipped]) == pytest.approx(0.03)
    assert episode_cost([Event("wrong_department", 0), Event("form_too_long", 1)]) == pytest.approx(0.10)
    assert episode_cost([Event("on_hold", 0), Event("closed", 1), Event("referred", 2)]) == 0.0
    assert episode_cost([Event("over_collected", 0, "", tuple("abcdefghij"))]) == pytest.approx(0.30)
    assert episode_cost([Event("over_collected", 0, "", ("a",))]) == pytest.approx(0.05)


def test_the_ladder_rises_rung_by_rung_and_is_zero_at_the_end():
    world = small_world(level=4, lines=CHAIN)
    rungs = [potential(world, State())]
    for fields in (("last_payment",), ("email",), ("email", "full_name", "member_id")):
        rungs.append(potential(world, after_form(world, *fields)))
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


def test_moves_tick_and_end_the_episode():
    world = small_world(wants=("billing",))
    assert play(world, State(), Move("search")) == tick(State())
    assert play(world, State(), Move("stop")).ended
    state = play(world, State(), Move("form", frozenset({"full_name"})))
    done = play(world, state, Move("call", frozenset({"full_name"}), BILLING, "R1"))
    assert (done.served, done.ended, done.tick) == ({"R1"}, True, 2)
