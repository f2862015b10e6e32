"""Rule feedback: from events alone, never a value, as much as the verbosity allows."""

from __future__ import annotations

import pytest

from env.feedback.rules import MAX_CHARACTERS, rule_feedback
from env.phone.environment import PhoneEnv
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
        num_companies=30, num_train=60, num_val=1, num_test=1, level_shares={1: 0.5, 2: 0.5}, seed=4
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
            assert not words & set(env.world.profile.values())
            assert len(feedback.text) <= MAX_CHARACTERS
            other = PhoneEnv(verbosity=verbosity)
            play_scripted(task, policy, seed=2, env=other)
            assert other.feedback() == feedback
    assert said > 50
