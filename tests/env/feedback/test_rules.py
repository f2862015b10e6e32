"""Rule feedback: from events alone, never a value, as much as the verbosity allows."""

from __future__ import annotations

import re

import pytest

from env.feedback.rules import MAX_CHARACTERS, rule_feedback
from env.phone.environment import PhoneEnv
from env.phone.forms import sufficient_forms
from env.phone.lexicon import FIELDS
from env.phone.policies import play_scripted
from env.phone.tasks import generate_tasks
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
        ([Event("auth_missing", 0, "Billing", ("account_number",)), FORM], "but no later call sent it."),
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


def test_no_call_is_not_a_failed_call():
    assert rule_feedback([Event("none", 0)], "binary").text == "Not completed. No call was made."


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


def test_a_form_as_corrective_feedback_advises_would_do():
    tasks = generate_tasks(
        num_companies=30, num_train=40, num_val=1, num_test=1, level_shares={4: 0.5, 5: 0.5}, seed=4
    )
    for task in tasks[:40]:
        env = PhoneEnv(verbosity="corrective")
        play_scripted(task, "over_collector", seed=2, env=env)
        if (feedback := env.feedback()) is not None:
            advised = re.search(r"Ask for ([a-z0-9_, ]+) in the one form", feedback.text).group(1).split(", ")
            assert set(advised) <= env.world.profile.keys()
            assert len(advised) <= env.world.level.max_form_fields
            sets = [line.sets for line in env.world.needed_lines()]
            assert sufficient_forms(sets, set(advised), len(advised))
