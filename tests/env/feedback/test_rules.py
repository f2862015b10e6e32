"""Rule feedback: from events alone, never a value, as much as the verbosity allows."""

from __future__ import annotations

import re

import pytest

from env.phone.episode.environment import PhoneEnv
from env.phone.episode.feedback import MAX_CHARACTERS, rule_feedback
from env.phone.scripted.policies import play_scripted
from env.phone.solver.forms import sufficient_forms
from env.phone.world.lexicon import FIELDS
from env.phone.world.tasks import generate_tasks
from pipeline.types import Event

FORM = Event("form", 1, "auth_info_form", ("account_number",))
MISSING = Event("auth_missing", 2, "Billing", ("billing_zip", "email"))
NEEDED = ("account_number", "email", "billing_zip")


def test_the_three_verbosities_say_what_they_may():
    events = [Event("found", 0, "Blue Hill One"), FORM, MISSING]
    assert rule_feedback(events, "binary").text == "Not completed. The call to Billing failed."
    observed = "Billing needs: billing_zip, email. Your form had account_number only."
    assert rule_feedback(events, "observed").text == observed
    corrective = rule_feedback(events, "corrective", NEEDED)
    assert corrective.text == f"{observed} Ask for account_number, email, billing_zip in the one form."
    assert corrective.privileged
    assert corrective.source == "rules/corrective"
    assert not rule_feedback(events, "observed", NEEDED).privileged


def test_corrective_is_not_privileged_when_the_line_had_said_it_all():
    events = [Event("auth_missing", 0, "Billing", tuple(sorted(NEEDED)))]
    assert not rule_feedback(events, "corrective", NEEDED).privileged


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([Event("none", 0)], "You sent no form. You stopped too early."),
        ([Event("max_turns", 7)], "You sent no form. No turns were left."),
        ([FORM, Event("fabricated_auth", 2, "Billing", ("email",))], "Only values of the form count."),
        ([FORM, Event("form_already_submitted", 2)], "There is one form only."),
        (
            [Event("wrong_department", 0, "Sales", detail="Billing serves it")],
            "Not Sales: Billing serves it.",
        ),
        (
            [Event("auth_missing", 0, "Billing", ("account_number",)), FORM],
            "but no later call sent it there.",
        ),
        (
            [Event("auth_missing", 0, "Billing", ("account_number",)), FORM, Event("locked", 2, "Billing")],
            "Your form had account_number only.",
        ),
        ([Event("wrong_department", 0, "Sales")], "Not Sales."),
        ([Event("must_call_first", 0, "Fraud", detail="Service comes first")], "Fraud: Service comes first."),
        ([Event("must_call_first", 0, "Fraud")], "Fraud: another line comes first."),
        ([Event("must_call_first", 0, "Fraud", ("email",))], "Fraud needs: email."),
        ([Event("closed", 0, "Billing", detail="opens at turn 5")], "Billing opens at turn 5."),
        ([Event("on_hold", 0, "Billing"), Event("none", 1)], "Billing put the call on hold."),
        ([Event("nothing_to_wait_for", 0), Event("max_turns", 1)], "Nobody was on hold."),
        ([Event("referred", 1, "Service", detail="R1 on to Fraud")], "Service sent R1 on to Fraud."),
        ([FORM, Event("two_values", 1, "", ("email",))], "The customer gave two values for email."),
        (
            [Event("auth_missing", 0, "Billing", (name,), "next") for name in ("member_id", "email")],
            "Billing needs: member_id, email.",
        ),
        (
            [Event("auth_missing", 0, "Billing", (name,)) for name in ("member_id", "email")],
            "Billing needs: email.",
        ),
        (
            [
                Event("must_call_first", 0, "Fraud", ("member_id",), "Service comes first; next"),
                Event("auth_missing", 1, "Fraud", ("email",), "next"),
            ],
            "Fraud needs: member_id, email. You sent no form. Fraud: Service comes first.",
        ),
        (
            [
                Event("auth_missing", 0, "Billing", ("email",), "next"),
                Event("probe", 1, "Billing", ("email", "full_name")),
                Event("auth_missing", 1, "Billing", (), "enough"),
                Event("auth_missing", 2, "Billing", ("full_name",), "next"),
            ],
            "Billing would take: email, full_name. You sent no form.",
        ),
        ([Event("must_call_first", 0, "Fraud", (), "enough")], "Fraud would take: all that the call named."),
        (
            [Event("auth_missing", 0, "Billing", ("email",), "or full_name")],
            "Billing needs: email or full_name.",
        ),
        ([Event("unavailable", 0, "", ("email",)), Event("form", 0)], "Your form had nothing."),
        ([Event("bad_args", 0), Event("bad_args", 1)], "You sent no form. A message was no valid call."),
    ],
)
def test_what_is_observed_is_said_once(events, text):
    said = rule_feedback(events, "observed").text
    assert said.count(text) == 1


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([Event("none", 0)], "Not completed. No call was made."),
        ([Event("referred", 1, "Service"), Event("none", 2)], "Not completed. More calls were needed."),
        (
            [Event("on_hold", 1, "Service"), Event("referred", 2, "Service"), Event("max_turns", 2)],
            "Not completed. More calls were needed.",
        ),
        ([Event("served", 1, "Billing"), Event("none", 2)], "Not completed. More calls were needed."),
        ([Event("served", 1, "Billing"), MISSING], "Not completed. The call to Billing failed."),
        ([MISSING, Event("wrong_department", 3, "Sales")], "Not completed. The call to Sales failed."),
        ([Event("invalid_number", 1)], "Not completed. The call failed."),
    ],
)
def test_binary_says_no_more_than_how_the_last_call_ended(events, text):
    assert rule_feedback(events, "binary").text == text


def test_an_unknown_verbosity_is_refused():
    with pytest.raises(ValueError, match="known: binary, observed, corrective"):
        rule_feedback([], "loud")  # type: ignore[arg-type]


def test_long_feedback_is_cut_at_a_sentence():
    events = [Event("auth_missing", turn, f"Line {turn}", FIELDS[:6]) for turn in range(20)]
    text = rule_feedback(events, "observed").text
    assert len(text) <= MAX_CHARACTERS
    assert text.endswith(".")


@pytest.mark.parametrize("verbosity", ["binary", "observed", "corrective"])
def test_feedback_never_holds_a_value_and_depends_on_events_alone(verbosity):
    tasks = generate_tasks(
        num_companies=30,
        num_train=60,
        num_val=1,
        num_test=1,
        level_shares=dict.fromkeys(range(1, 6), 0.2),
        seed=4,
    )
    said = 0
    for task in tasks:
        for policy in ("random", "over_collector", "fabricator"):
            env = PhoneEnv(verbosity=verbosity)
            play_scripted(task, policy, seed=2, env=env)
            feedback = env.feedback()
            if feedback is None:
                assert env.verdict().success
                continue
            said += 1
            words = set(feedback.text.replace(",", " ").replace(".", " ").split())
            assert not words & {*env.world.profile.values(), *(wrong for _, wrong in env.world.slips)}
            assert not any(re.fullmatch(r"T\d{4}", word) for word in words)
            assert len(feedback.text) <= MAX_CHARACTERS
            other = PhoneEnv(verbosity=verbosity)
            play_scripted(task, policy, seed=2, env=other)
            assert other.feedback() == feedback
    assert said > 50


def test_corrective_feedback_names_the_route_of_what_is_not_served():
    events = [Event("served", 3, "Fraud", detail="R1")]
    routes = [("R1", ("Service", "Fraud")), ("R2", ("Service", "Billing"))]
    feedback = rule_feedback(events, "corrective", NEEDED, routes)
    assert feedback.text.endswith("For R2 call Service, then Billing.")
    assert "For R1" not in feedback.text
    assert feedback.privileged
    assert "Service" not in rule_feedback(events, "observed", NEEDED, routes).text


def test_corrective_feedback_always_corrects():
    """Whatever was observed, it tells a form that would do, and the route of every request that is left."""
    tasks = generate_tasks(
        num_companies=30, num_train=60, num_val=1, num_test=1, level_shares={4: 0.5, 5: 0.5}, seed=4
    )
    lengths = []
    for task in tasks[:60]:
        for policy in ("over_collector", "prior_only", "noisy_adaptive", "random"):
            env = PhoneEnv(verbosity="corrective")
            play_scripted(task, policy, seed=2, noise=0.3, env=env)
            if (feedback := env.feedback()) is None:
                continue
            lengths.append(len(feedback.text))
            advised = re.search(r"Ask for ([a-z0-9_, ]+) in the one form", feedback.text).group(1).split(", ")
            assert set(advised) <= env.world.profile.keys()
            assert len(advised) <= env.world.level.max_form_fields
            sets = [line.sets for line in env.world.needed_lines()]
            assert sufficient_forms(sets, set(advised), len(advised))
            for request in env.world.requests:
                names = ", then ".join(line.name for line in env.world.path(request))
                said = f"For {request.request_id} call {names}." in feedback.text
                is_left = request.request_id not in env.state.served and ", then " in names
                assert said == is_left
    assert len(lengths) > 100
    assert MAX_CHARACTERS - 60 < max(lengths) <= MAX_CHARACTERS  # some were cut


def test_a_line_that_names_one_field_at_a_time_is_remembered_and_so_is_that_an_offer_will_do():
    tasks = generate_tasks(
        num_companies=30, num_train=60, num_val=1, num_test=1, level_shares={3: 0.5, 4: 0.5}, seed=4
    )
    naming = ("auth_missing", "must_call_first")
    peeled = enough = 0
    for task, policy in ((task, policy) for task in tasks[:60] for policy in ("prober", "noisy_adaptive")):
        env = PhoneEnv()
        played = play_scripted(task, policy, seed=2, noise=0.2, env=env)[1]
        if (feedback := env.feedback()) is None:
            continue
        heard = [event for result in played for event in result.events]
        for line in env.world.company.departments:
            own = [event for event in heard if event.target == line.name and event.code in naming]
            if any(event.detail.endswith("enough") for event in own):
                assert line.disclosure in ("first", "count")
                assert f"{line.name} would take: " in feedback.text
                enough += 1
            elif line.disclosure == "first" and any(event.fields for event in own):
                names = ", ".join(dict.fromkeys(field for event in own for field in event.fields))
                assert f"{line.name} needs: {names}." in feedback.text
                peeled += ", " in names
    assert peeled > 0
    assert enough > 0
