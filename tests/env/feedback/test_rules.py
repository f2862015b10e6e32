"""Rule feedback: from events alone, never a value, as much as the verbosity allows."""

import re
from collections import Counter
from functools import cache
from itertools import product

import pytest

from env.phone.episode.feedback import MAX_CHARACTERS, rule_feedback
from env.phone.episode.tools import CALL
from env.phone.scripted.policies import play_scripted
from env.phone.world.rules import sufficient_forms
from env.protocol import ToolCall
from pipeline.types import Event
from tests.env.phone.worlds import STYLE, mixed_tasks, started

NEEDED = ("account_number", "email", "billing_zip")


def told(*rows):
    """Events from rows of code, target, fields in one text, and detail; each in a turn of its own."""
    events = []
    for turn, row in enumerate(rows):
        code, target, fields, detail = (*row, *[""] * (4 - len(row)))
        events.append(Event(code, turn, target, tuple(fields.split()), detail))
    return events


FORM = ("form", "auth_info_form", "account_number")
MISSING = ("auth_missing", "Billing", "billing_zip email")
ASKED = ("auth_missing", "Billing", "account_number")


def test_the_three_verbosities_say_what_they_may():
    events = told(("found", "Blue Hill One"), FORM, MISSING)
    assert rule_feedback(events, "binary").text == "Not completed. The call to Billing failed."
    observed = "Billing needs: billing_zip, email. Your form had account_number only."
    assert rule_feedback(events, "observed").text == observed
    corrective = rule_feedback(events, "corrective", NEEDED)
    assert corrective.text == f"{observed} Ask for account_number, email, billing_zip in the one form."
    assert (corrective.privileged, corrective.source) == (True, "rules/corrective")
    assert not rule_feedback(events, "observed", NEEDED).privileged
    all_said = told(("auth_missing", "Billing", " ".join(NEEDED)))
    assert not rule_feedback(all_said, "corrective", NEEDED).privileged
    with pytest.raises(ValueError, match="known: binary, observed, corrective"):
        rule_feedback([], "loud")  # type: ignore[arg-type]


PROBED = Event("probe", 1, "Billing", ("email", "full_name"))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("none",)], "You sent no form. You stopped too early."),
        ([("max_turns",)], "You sent no form. No turns were left."),
        ([FORM, ("fabricated_auth", "Billing", "email")], "Only values of the form count."),
        ([FORM, ("form_already_submitted",)], "There is one form only."),
        ([("wrong_department", "Sales", "", "Billing serves it")], "Not Sales: Billing serves it."),
        ([("wrong_department", "Sales")], "Not Sales."),
        ([("wrong_department", "Sales", "", "Sales does not serve R2")], "form. Sales does not serve R2."),
        ([ASKED, FORM], "but no later call sent it there."),
        ([ASKED, FORM, ("locked", "Billing")], "Your form had account_number only."),
        ([("must_call_first", "Fraud", "", "Service comes first")], "Fraud: Service comes first."),
        ([("must_call_first", "Fraud")], "Fraud: another line comes first."),
        ([("must_call_first", "Fraud", "email")], "Fraud needs: email."),
        ([("must_call_first", "Fraud", "", "enough")], "Fraud would take: all that the call named."),
        (
            [
                ("must_call_first", "Fraud", "member_id", "Service comes first; next"),
                ("auth_missing", "Fraud", "email", "next"),
            ],
            "Fraud needs: member_id, email. You sent no form. Fraud: Service comes first.",
        ),
        ([("closed", "Billing", "", "opens at turn 5")], "Billing opens at turn 5."),
        ([("on_hold", "Billing"), ("none",)], "Billing put the call on hold."),
        ([("nothing_to_wait_for",), ("max_turns",)], "Nobody was on hold."),
        ([("referred", "Service", "", "R1 on to Fraud")], "Service sent R1 on to Fraud."),
        ([FORM, ("two_values", "", "email")], "The customer gave two values for email."),
        (
            [("auth_missing", "Billing", name, "next") for name in ("member_id", "email")],
            "Billing needs: member_id, email.",
        ),
        ([("auth_missing", "Billing", name) for name in ("member_id", "email")], "Billing needs: email."),
        ([("auth_missing", "Billing", "email", "or full_name")], "Billing needs: email or full_name."),
        ([("unavailable", "", "email"), ("form",)], "Your form had nothing."),
        ([("bad_args",), ("bad_args",)], "You sent no form. A message was no valid call."),
    ],
)
def test_what_is_observed_is_said_once(rows, text):
    assert rule_feedback(told(*rows), "observed").text.count(text) == 1


def test_what_an_offer_was_enough_for_is_the_last_word_of_a_line():
    first, enough, later = told(
        ("auth_missing", "Billing", "email", "next"),
        ("auth_missing", "Billing", "", "enough"),
        ("auth_missing", "Billing", "full_name", "next"),
    )
    said = rule_feedback([first, PROBED, enough, later], "observed").text
    assert said == "Billing would take: email, full_name. You sent no form."


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("none",)], "No call was made."),
        ([("referred", "Service"), ("none",)], "More calls were needed."),
        ([("on_hold", "Service"), ("referred", "Service"), ("max_turns",)], "More calls were needed."),
        ([("served", "Billing"), ("none",)], "More calls were needed."),
        ([("served", "Billing"), MISSING], "The call to Billing failed."),
        ([MISSING, ("wrong_department", "Sales")], "The call to Sales failed."),
        ([("invalid_number",)], "The call failed."),
    ],
)
def test_binary_says_no_more_than_how_the_last_call_ended(rows, text):
    assert rule_feedback(told(*rows), "binary").text == f"Not completed. {text}"


@cache
def failures(verbosity, *policies):
    """Returns (environment, feedback) of failed episodes at all levels."""
    found = []
    for task in mixed_tasks(100, companies=30, seed=4)[:100]:
        for policy in policies:
            env = started(task, verbosity=verbosity)
            play_scripted(task, policy, seed=2, noise=0.3, env=env)
            assert (env.feedback() is None) == env.verdict().success
            if (feedback := env.feedback()) is not None:
                found.append((env, feedback))
    assert len(found) > 50
    return found


@pytest.mark.parametrize("verbosity", ["binary", "observed", "corrective"])
def test_feedback_never_holds_a_value(verbosity):
    for env, feedback in failures(verbosity, "random", "over_collector", "fabricator"):
        words = set(feedback.text.replace(",", " ").replace(".", " ").split())
        assert not words & {*env.world.profile.values(), *(wrong for _, wrong in env.world.slips)}
        assert not any(re.fullmatch(r"T\d{4}", word) for word in words)
        assert len(feedback.text) <= MAX_CHARACTERS


def test_where_lines_share_a_name_a_wrong_one_is_told_by_its_number_and_for_what():
    """Its name alone would deny the line that is needed, or one that serves another request."""
    told_by = Counter()
    for task in [task for task in mixed_tasks(100, companies=30, seed=4) if task.level == 5][:20]:
        world = started(task).world
        names = Counter(line.name for line in world.company.departments)
        for line, request in product(world.company.departments, world.requests):
            env, call = started(task), {"phone_number": line.phone, "request": request.request_id}
            events = env.step(STYLE.action_of(ToolCall(CALL, {**call, "auth_info": {}}))).events
            if any(event.code == "wrong_department" for event in events):
                env.step(STYLE.action_of(None))
                who = f"{line.phone} ({line.name})" if names[line.name] > 1 else line.name
                assert f" {who} does not serve {request.request_id}. " in env.feedback().text
                assert line not in world.path(request)
                told_by[names[line.name]] += 1
    assert min(told_by[1], told_by[2]) > 10


def test_corrective_feedback_names_the_route_of_what_is_not_served():
    routes = [("R1", ("Service", "Fraud")), ("R2", ("Service", "Billing"))]
    events = told(("served", "Fraud", "", "R1"))
    feedback = rule_feedback(events, "corrective", NEEDED, routes)
    assert feedback.text.endswith("For R2 call Service, then Billing.")
    assert "For R1" not in feedback.text
    assert feedback.privileged
    assert "Service" not in rule_feedback(events, "observed", NEEDED, routes).text


def test_corrective_feedback_always_corrects():
    """Whatever was observed, it tells a form that would do, and the route of every request that is left."""
    lengths = []
    for env, feedback in failures("corrective", "over_collector", "prior_only", "noisy_adaptive", "random"):
        lengths.append(len(feedback.text))
        assert feedback.text.endswith(".")  # one that is too long is cut at a sentence
        advised = re.search(r"Ask for ([a-z0-9_, ]+) in the one form", feedback.text).group(1).split(", ")
        assert set(advised) <= env.world.profile.keys()
        sets = [line.sets for line in env.world.needed_lines()]
        assert sufficient_forms(sets, set(advised), env.world.level.max_form_fields)
        for request in env.world.requests:
            names = ", then ".join(line.name for line in env.world.path(request))
            said = f"For {request.request_id} call {names}." in feedback.text
            assert said == (request.request_id not in env.state.served and ", then " in names)
    assert MAX_CHARACTERS - 60 < max(lengths) <= MAX_CHARACTERS  # some were cut


def test_a_line_that_names_one_field_at_a_time_is_remembered_and_so_is_that_an_offer_will_do():
    peeled = enough = 0
    for env, feedback in failures("observed", "prober", "noisy_adaptive", "adaptive"):
        for line in env.world.company.departments if not env.world.level.has_twins else ():
            own = [event for event in env.events if event.target == line.name]
            own = [event for event in own if event.code in ("auth_missing", "must_call_first")]
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
