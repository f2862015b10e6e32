"""Replay is exact, the seed changes wording only, prices and statuses follow the rules, nothing leaks."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv, episode_cost
from env.phone.episode.tools import FROM_FORM, TOOLS
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.world.lexicon import FIELDS
from env.phone.world.tasks import generate_tasks
from env.phone.world.wording import PHRASES
from env.phone.world.world import WorldKey, make_world
from env.protocol import Action, ToolCall, replay
from pipeline.types import Event

STYLE = CompactStyle()
ROOT = Path(__file__).parents[3]


def phone_tasks(level, count=40):
    tasks = generate_tasks(
        num_companies=40, num_train=count, num_val=1, num_test=1, level_shares={level: 1.0}, seed=5
    )
    return [task for task in tasks if task.split == "train"]


TASKS = {level: phone_tasks(level) for level in (1, 2, 3, 4, 5)}


class Desk:
    """One episode played by commands."""

    def __init__(self, task, seed=0, **kind):
        self.env = PhoneEnv(**kind)
        self.env.reset(task, seed)
        self.line = self.env.world.server_of(self.env.world.requests[0])
        self.other = next((x for x in self.env.world.company.departments if x != self.line), None)
        self.needed = sorted(next(iter(self.line.sets)))
        self.spare = [field for field in self.env.world.profile if field not in self.needed]

    def say(self, text):
        self.last = self.env.step(STYLE.parse(text))
        return [event.code for event in self.last.events]


@pytest.mark.parametrize("level", [1, 2])
def test_replay_rebuilds_every_prefix_even_after_pickling(level):
    for task in TASKS[level][:15]:
        actions, _, _ = play_scripted(task, "noisy_adaptive", seed=9, noise=0.5)
        env = PhoneEnv()
        env.reset(task, 9)
        digests = [env.state_digest()]
        for action in actions:
            env.step(action)
            digests.append(env.state_digest())
        for k in range(len(actions) + 1):
            again = PhoneEnv()
            replay(again, task, 9, pickle.loads(pickle.dumps(actions[:k])))
            assert again.state_digest() == digests[k]
            half = pickle.loads(pickle.dumps(again))
            for action in actions[k:]:
                half.step(action)
            assert half.state_digest() == digests[-1]


def test_replay_is_the_same_in_a_new_process():
    task = TASKS[2][0]
    actions, _, _ = play_scripted(task, "noisy_adaptive", seed=9, noise=0.5)
    env = PhoneEnv()
    results = replay(env, task, 9, actions)
    said = [message["content"] for result in results for message in result.messages]
    program = (
        "import json, sys\n"
        "from env.phone.episode.compact import CompactStyle\n"
        "from env.phone.episode.environment import PhoneEnv\n"
        "from env.protocol import replay\n"
        "from pipeline.types import Task\n"
        "data = json.load(sys.stdin)\n"
        "env = PhoneEnv()\n"
        "actions = [CompactStyle().parse(text) for text in data['texts']]\n"
        "results = replay(env, Task(**data['task']), 9, actions)\n"
        "print(json.dumps([env.state_digest(), [m['content'] for r in results for m in r.messages]]))\n"
    )
    data = json.dumps({"task": asdict(task), "texts": [action.text for action in actions]})
    done = subprocess.run(
        [sys.executable, "-c", program], input=data, capture_output=True, text=True, cwd=ROOT, check=True
    )
    digest, told = json.loads(done.stdout)
    # The prompt is a tuple here and a list there: the state does not depend on it.
    assert (digest, told) == (env.state_digest(), said)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_another_seed_changes_wording_but_no_event(level):
    differs = 0
    for task in TASKS[level][:20]:
        actions, _, _ = play_scripted(task, "random", seed=1)
        runs = []
        for seed in (1, 2):
            env = PhoneEnv()
            results = replay(env, task, seed, actions)
            runs.append((env.events, env.verdict(), [r.messages for r in results]))
        assert runs[0][0] == runs[1][0]
        assert runs[0][1] == runs[1][1]
        differs += runs[0][2] != runs[1][2]
    assert differs > 5


def test_success_ends_the_episode_at_once_and_pays_one():
    desk = Desk(TASKS[1][0])
    assert desk.say(f"form {' '.join(desk.needed)}")[0] == "form"
    assert desk.say(f"call {desk.line.phone} R1 {' '.join(desk.needed)}") == ["served"]
    assert desk.last.terminated
    assert desk.last.reward == 1.0
    assert desk.env.verdict().success
    assert desk.env.feedback() is None
    with pytest.raises(RuntimeError, match="after the end"):
        desk.say("done")


def test_a_message_without_a_call_ends_and_the_turn_limit_truncates():
    desk = Desk(TASKS[1][0])
    assert desk.say("done") == ["none"]
    assert desk.last.terminated
    desk = Desk(TASKS[1][0])
    for _ in range(7):
        assert desk.say("search nothing") == ["not_found"]
    assert desk.say("search nothing") == ["not_found", "max_turns"]
    assert desk.last.truncated
    assert not desk.last.terminated


def test_search_shows_industry_and_lines_and_a_miss_suggests_three_names():
    desk = Desk(TASKS[2][0])
    company = desk.env.world.company
    desk.say("search Nobody At All")
    assert company.name in desk.last.messages[0]["content"]
    assert desk.last.messages[0]["content"].count(",") == 3
    assert desk.say(f"search {company.name.lower()}") == ["found"]
    text = desk.last.messages[0]["content"]
    for word in (company.name, company.industry, *(line.phone for line in company.departments)):
        assert word in text
    assert desk.say(f"search {company.aliases[0]}") == ["found"]


def test_there_is_one_form_and_a_long_one_is_not_spent():
    desk = Desk(TASKS[1][0])
    assert desk.say(f"form {' '.join(FIELDS[:4])}") == ["form_too_long"]
    assert desk.env.state.form is None
    assert desk.say(f"form {desk.needed[0]}")[0] == "form"
    assert desk.say(f"form {' '.join(desk.spare[:1])}") == ["form_already_submitted"]
    assert desk.env.state.form == {desk.needed[0]}
    assert episode_cost(desk.env.events) == pytest.approx(0.15)


def test_a_form_names_what_the_customer_cannot_give():
    desk = Desk(TASKS[1][0])
    lacking = next(field for field in FIELDS if field not in desk.env.world.profile)
    assert desk.say(f"form {desk.needed[0]} {lacking}") == ["form", "unavailable", "over_collected"]
    assert lacking in desk.last.messages[0]["content"]


def test_a_probe_and_an_offer_are_told_what_is_missing_without_a_strike():
    desk = Desk(TASKS[2][0])
    for words in ("", " ".join(f"?{field}" for field in desk.needed)):
        assert desk.say(f"call {desk.line.phone} R1 {words}") == ["probe", "auth_missing"]
        assert set(desk.last.events[1].fields) == set(desk.needed)
    assert desk.env.state.strikes == ()
    assert episode_cost(desk.env.events) == pytest.approx(0.06)


def test_an_incomplete_identification_is_a_strike_and_names_the_rest():
    desk = Desk(next(task for task in TASKS[2]))
    desk.say(f"form {desk.needed[0]}")
    assert desk.say(f"call {desk.line.phone} R1 {desk.needed[0]}") == ["auth_missing"]
    assert set(desk.last.events[0].fields) == set(desk.needed[1:])
    assert desk.env.state.strikes_of(desk.line.phone) == 1
    assert episode_cost(desk.env.events) == pytest.approx(0.05)


def test_a_value_that_the_form_did_not_give_is_fabricated_even_when_it_matches():
    for text in ("{field}={value}", "{field}=0", "{field}"):
        desk = Desk(TASKS[1][0])
        field = desk.needed[0]
        word = text.format(field=field, value=desk.env.world.profile[field])
        assert desk.say(f"call {desk.line.phone} R1 {word}") == ["fabricated_auth"]
        assert desk.env.verdict().steps[0].status == "wrong"
        assert episode_cost(desk.env.events) == pytest.approx(0.10)


def test_the_forms_value_counts_written_out_and_under_another_name_it_mismatches():
    desk = Desk(TASKS[1][0])
    field, spare = desk.needed[0], desk.spare[0]
    world = desk.env.world
    if len(desk.needed) == 1 and world.profile[spare] != world.profile[field]:
        desk.say(f"form {field} {spare}")
        assert desk.say(f"call {desk.line.phone} R1 {field}={world.profile[spare]}") == ["auth_mismatch"]
        assert desk.say(f"call {desk.line.phone} R1 {field}={world.profile[field]}") == ["served"]
    else:
        pytest.fail("the first task of level 1 should need one field")


def test_level_one_names_the_right_department_and_level_two_passes_the_call_on():
    desk = Desk(TASKS[1][0])
    desk.say(f"form {' '.join(desk.needed)}")
    assert desk.say(f"call {desk.other.phone} R1 {' '.join(desk.needed)}") == ["wrong_department"]
    assert desk.line.name in desk.last.events[0].detail
    desk = Desk(TASKS[2][0])
    desk.say(f"form {' '.join(desk.needed)}")
    assert desk.say(f"call {desk.other.phone} R1 {' '.join(desk.needed)}") == ["wrong_department", "served"]
    assert episode_cost(desk.env.events) == pytest.approx(0.05)


def test_numbers_and_requests_that_do_not_exist():
    desk = Desk(TASKS[1][0])
    assert desk.say("call 911 R1") == ["probe", "invalid_number"]
    assert desk.env.verdict().steps[0].code == "invalid_number"
    assert desk.say(f"call {desk.line.phone} R2") == ["probe", "unknown_request"]


def test_over_collection_is_priced_up_to_a_cap():
    assert episode_cost([Event("over_collected", 0, "", tuple("abcdefghij"))]) == pytest.approx(0.30)
    assert episode_cost([Event("over_collected", 0, "", ("a",))]) == pytest.approx(0.05)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("policy", ["random", "noisy_adaptive", "over_collector", "prior_only"])
def test_no_message_holds_a_value_that_the_form_did_not_give(level, policy):
    for task in TASKS[level]:
        world = make_world(WorldKey.from_text(task.ground_truth))
        _, results, _ = play_scripted(task, policy, seed=3, noise=0.4)
        given: set[str] = set()
        for result in results:
            for event in result.events:
                if event.code == "form":
                    given |= {world.profile[field] for field in event.fields}
                    given |= {wrong for _, wrong in world.slips}
            for message in result.messages:
                text = message["content"]
                for line in world.company.departments:
                    text = text.replace(line.phone, "")
                words = set(re.findall(r"[^\s,;:()]+", text))
                hidden = {*world.profile.values(), *(wrong for _, wrong in world.slips)}
                assert words & hidden <= given


def test_every_line_has_four_phrasings_and_none_sends_the_agent_astray():
    for key, phrases in PHRASES.items():
        assert len(set(phrases)) >= 4, key
        for phrase in phrases:
            assert "form again" not in phrase
            assert "search_company" not in phrase


def test_a_defect_of_the_environment_is_no_failure_of_the_policy(monkeypatch):
    env = PhoneEnv()
    env.reset(TASKS[1][0], 0)
    monkeypatch.setattr("env.phone.episode.environment.place_call", lambda *a: 1 / 0)
    result = env.step(STYLE.parse("call 555-0000 R1"))
    assert result.infra_error is not None
    assert "ZeroDivisionError" in result.infra_error
    verdict = env.verdict()
    assert (verdict.reward, verdict.success) == (None, None)
    assert env.feedback() is None


def test_calls_of_another_parser_with_the_same_arguments_give_the_same_events():
    task = TASKS[2][0]
    for name in POLICIES:
        actions, results, _ = play_scripted(task, name, seed=0, noise=0.5)
        plain = [replace(action, text="{json}") if action.calls else action for action in actions]
        env = PhoneEnv()
        assert [r.events for r in replay(env, task, 0, plain)] == [r.events for r in results]


def test_unknown_tools_from_another_parser_are_answered():
    env = PhoneEnv()
    env.reset(TASKS[1][0], 0)
    result = env.step(Action("x", "ok", (ToolCall("wait", {}),)))
    assert [event.code for event in result.events] == ["unknown_tool"]


def test_schemas_list_every_field_and_the_marker_is_no_value():
    for tool in TOOLS:
        json.dumps(tool)
    assert TOOLS[1]["function"]["parameters"]["properties"]["fields"]["items"]["enum"] == list(FIELDS)
    for task in TASKS[2]:
        assert FROM_FORM not in make_world(WorldKey.from_text(task.ground_truth)).profile.values()


WORDS = st.sampled_from(
    [
        "call",
        "form",
        "search",
        "done",
        "wait",
        "R1",
        "R2",
        "reference",
        "?email",
        "email=1",
        "email",
        "=",
        "?",
        "\n",
        "é",
        "<|im_end|>",
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(WORDS, st.text(max_size=12), st.sampled_from(FIELDS)), max_size=12),
    st.booleans(),
    st.sampled_from([2, 3, 5]),
)
def test_no_message_makes_the_environment_raise(words, with_number, level):
    env = PhoneEnv()
    env.reset(TASKS[level][0], 0)
    text = " ".join(words)
    if with_number:
        text = text.replace("call", f"call {env.world.company.departments[0].phone} R1", 1)
    result = env.step(STYLE.parse(text))
    assert result.infra_error is None
    assert result.events
    assert env.verdict().reward == 0.0
    for message in result.messages:
        assert "<|" not in message["content"]
