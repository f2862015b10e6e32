"""What is said, what may be sent and what it earns; the seed changes wording only, and nothing leaks."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env.phone.episode.environment import episode_cost
from env.phone.episode.speech import PHRASES
from env.phone.episode.tools import FROM_FORM, TOOLS, WAIT, tools_of
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.solver.solver import optimal_move, tool_call
from env.phone.world.levels import LEVELS
from env.phone.world.lexicon import FIELDS
from env.protocol import Action, ToolCall, replay
from tests.env.phone.worlds import STYLE, Desk, level_tasks, started, world_of

ALL = tuple(LEVELS)


def tasks_of(level, count=40):
    return level_tasks(level, 150, companies=60, seed=5)[:count]


def desk_where(level, holds, **kind):
    """Starts the first task whose world is like that."""
    return Desk(next(task for task in tasks_of(level, 150) if holds(world_of(task))), **kind)


def first_path(world):
    return world.path(world.requests[0])


def no_obstacle(world):
    return not (world.busy or world.closings or world.slips)


@pytest.mark.parametrize("level", ALL)
def test_another_seed_changes_wording_but_no_event(level):
    differs = 0
    for task in tasks_of(level, 20):
        actions, _, _ = play_scripted(task, "random", seed=1)
        runs = []
        for seed in (1, 2):
            env = started(task)
            results = replay(env, task, seed, actions)
            runs.append((env.events, env.verdict(), [r.messages for r in results]))
        assert runs[0][:2] == runs[1][:2]
        differs += runs[0][2] != runs[1][2]
    assert differs > 5


def test_success_ends_the_episode_at_once_and_pays_one():
    desk = Desk(tasks_of(1)[0])
    assert desk.say(f"form {' '.join(desk.needed)}")[0] == "form"
    assert desk.say(f"call {desk.line.phone} R1 {' '.join(desk.needed)}") == ["served"]
    assert (desk.last.terminated, desk.last.reward) == (True, 1.0)
    assert desk.env.verdict().success
    assert desk.env.feedback() is None
    with pytest.raises(RuntimeError, match="after the end"):
        desk.say("done")


def test_a_message_without_a_call_ends_and_the_turn_limit_truncates():
    desk = Desk(tasks_of(1)[0])
    assert desk.say("done") == ["none"]
    assert desk.last.terminated
    desk = Desk(tasks_of(1)[0])
    for _ in range(7):
        assert desk.say("search nothing") == ["not_found"]
    assert desk.say("search nothing") == ["not_found", "max_turns"]
    assert (desk.last.truncated, desk.last.terminated) == (True, False)


@pytest.mark.parametrize("level", [2, 3])
def test_search_shows_industry_lines_and_later_hours_and_a_miss_suggests_three_names(level):
    desk = Desk(tasks_of(level)[0])
    company = desk.world.company
    desk.say("search Nobody At All")
    assert company.name in desk.heard
    assert desk.heard.count(",") == 3
    assert desk.say(f"search {company.name.lower()}") == ["found"]
    assert company.name in desk.heard
    assert company.industry in desk.heard
    for line in company.departments:
        hours = f"{line.hours} " if level == 3 else ""
        assert f"{line.name} {line.phone} {hours}{line.description}" in desk.heard
    assert desk.say(f"search {company.name.replace(' ', '')}") == ["found"]


def test_there_is_one_form_a_long_one_is_not_spent_and_what_is_lacking_is_named():
    desk = Desk(tasks_of(1)[0])
    lacking = next(field for field in FIELDS if field not in desk.world.profile)
    assert desk.say(f"form {' '.join(FIELDS[:4])}") == ["form_too_long"]
    assert desk.env.state.form is None
    assert desk.say(f"form {desk.needed[0]} {lacking}") == ["form", "unavailable", "over_collected"]
    assert lacking in desk.heard
    assert desk.say(f"form {desk.spare[0]}") == ["form_already_submitted"]
    assert desk.env.state.form == {desk.needed[0]}
    assert episode_cost(desk.env.events) == pytest.approx(0.20)


def test_probes_and_offers_are_told_what_is_missing_free_and_incomplete_values_for_a_strike():
    desk = Desk(tasks_of(2)[0])
    for words in ("", " ".join(f"?{field}" for field in desk.needed)):
        assert desk.say(f"call {desk.line.phone} R1 {words}") == ["probe", "auth_missing"]
        assert set(desk.last.events[1].fields) == set(desk.needed)
    assert desk.env.state.strikes == ()
    assert episode_cost(desk.env.events) == pytest.approx(0.06)
    desk.say(f"form {desk.needed[0]}")
    assert desk.say(f"call {desk.line.phone} R1 {desk.needed[0]}") == ["auth_missing"]
    assert set(desk.last.events[0].fields) == set(desk.needed[1:])
    assert desk.env.state.strikes_of(desk.line.phone) == 1
    assert episode_cost(desk.env.events) == pytest.approx(0.11)


def test_a_value_that_the_form_did_not_give_is_fabricated_even_when_it_matches():
    for text in ("{field}={value}", "{field}=0", "{field}"):
        desk = Desk(tasks_of(1)[0])
        field = desk.needed[0]
        word = text.format(field=field, value=desk.world.profile[field])
        assert desk.say(f"call {desk.line.phone} R1 {word}") == ["fabricated_auth"]
        assert desk.env.verdict().steps[0].status == "wrong"
        assert episode_cost(desk.env.events) == pytest.approx(0.10)


def test_the_forms_value_counts_written_out_and_under_another_name_it_mismatches():
    desk = Desk(tasks_of(1)[0])
    (field,), spare, profile = desk.needed, desk.spare[0], desk.world.profile
    assert profile[spare] != profile[field]
    desk.say(f"form {field} {spare}")
    assert desk.say(f"call {desk.line.phone} R1 {field}={profile[spare]}") == ["auth_mismatch"]
    assert desk.say(f"call {desk.line.phone} R1 {field}={profile[field]}") == ["served"]


@pytest.mark.parametrize(("level", "codes"), [(1, ["wrong_department"]), (2, ["wrong_department", "served"])])
def test_level_one_names_the_right_department_and_level_two_passes_the_call_on(level, codes):
    desk = Desk(tasks_of(level)[0])
    other = next(line for line in desk.world.company.departments if line != desk.line)
    desk.say(f"form {' '.join(desk.needed)}")
    assert desk.say(f"call {other.phone} R1 {' '.join(desk.needed)}") == codes
    assert desk.line.name in desk.last.events[0].detail
    assert episode_cost(desk.env.events) == pytest.approx(0.05)


def test_numbers_and_requests_that_do_not_exist():
    desk = Desk(tasks_of(1)[0])
    assert desk.say("call 911 R1") == ["probe", "invalid_number"]
    assert desk.env.verdict().steps[0].code == "invalid_number"
    assert desk.say(f"call {desk.line.phone} R2") == ["probe", "unknown_request"]


@pytest.mark.parametrize("level", ALL)
@pytest.mark.parametrize("policy", ["random", "noisy_adaptive", "over_collector", "prior_only"])
def test_no_message_holds_a_value_that_the_form_did_not_give(level, policy):
    for task in tasks_of(level):
        world = world_of(task)
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
                hidden = {*world.profile.values(), *(wrong for _, wrong in world.slips)}
                assert set(re.findall(r"[^\s,;:()]+", text)) & hidden <= given


def test_every_line_has_four_phrasings_and_none_sends_the_agent_astray():
    for key, phrases in PHRASES.items():
        assert len(set(phrases)) >= 4, key
        assert not any("form again" in phrase or "search_company" in phrase for phrase in phrases)


def test_a_defect_of_the_environment_is_no_failure_of_the_policy(monkeypatch):
    env = started(tasks_of(1)[0])
    monkeypatch.setattr("env.phone.episode.environment.place_call", lambda *a: 1 / 0)
    assert "ZeroDivisionError" in env.step(STYLE.parse("call 555-0000 R1")).infra_error
    verdict = env.verdict()
    assert (verdict.reward, verdict.success, env.feedback()) == (None, None, None)


def test_calls_of_another_parser_with_the_same_arguments_give_the_same_events():
    task = tasks_of(2)[0]
    for name in POLICIES:
        actions, results, _ = play_scripted(task, name, seed=0, noise=0.5)
        plain = [replace(action, text="{json}") if action.calls else action for action in actions]
        assert [r.events for r in replay(started(task), task, 0, plain)] == [r.events for r in results]
    unknown = started(task).step(Action("x", "ok", (ToolCall("wait", {}),)))
    assert [event.code for event in unknown.events] == ["unknown_tool"]


def test_schemas_list_every_field_the_marker_is_no_value_and_wait_is_a_tool_from_level_three_on():
    assert json.loads(json.dumps(TOOLS))[1]["function"]["parameters"]["properties"]["fields"]["items"][
        "enum"
    ] == list(FIELDS)
    for task in tasks_of(2):
        assert FROM_FORM not in world_of(task).profile.values()
    names = {level: [tool["function"]["name"] for tool in tools_of(LEVELS[level])] for level in LEVELS}
    assert [WAIT in names[level] for level in LEVELS] == [False, False, True, True, True]
    assert started(tasks_of(3)[0]).spec.tools == TOOLS


WORDS = st.sampled_from(
    [
        *("call", "form", "search", "done", "wait", "R1", "R2", "reference", "?email", "email=1", "email"),
        *("=", "?", "\n", "é", "<|im_end|>"),
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(WORDS, st.text(max_size=12), st.sampled_from(FIELDS)), max_size=12),
    st.booleans(),
    st.sampled_from([2, 3, 5]),
)
def test_no_message_makes_the_environment_raise(words, with_number, level):
    env = started(tasks_of(level)[0])
    text = " ".join(words)
    if with_number:
        text = text.replace("call", f"call {env.world.company.departments[0].phone} R1", 1)
    result = env.step(STYLE.parse(text))
    assert result.infra_error is None
    assert result.events
    assert env.verdict().reward == 0.0
    assert not any("<|" in message["content"] for message in result.messages)


def test_a_call_on_hold_is_told_with_its_id_and_taken_when_it_is_waited_for():
    desk = desk_where(3, lambda world: world.busy)
    assert desk.play_best(until="on_hold")[-1] == "on_hold"
    call_id = re.search(r"\bh\d+\b", desk.heard).group()
    assert desk.say(f"wait {call_id}x") == ["nothing_to_wait_for"]
    assert desk.say(f"wait {call_id}")[-1] in ("referred", "served")


def test_a_probe_on_hold_is_priced_once_and_only_when_it_is_heard():
    desk = desk_where(3, lambda world: first_path(world)[0].phone in world.busy)
    assert desk.say(f"call {desk.path[0].phone} R1") == ["on_hold"]
    assert desk.env.verdict().cost == 0.0
    assert desk.say("wait")[0] == "probe"
    assert desk.env.verdict().cost == pytest.approx(0.03)


def test_a_closed_line_tells_when_it_opens_and_waiting_gets_there():
    desk = desk_where(4, lambda world: world.opens_at(first_path(world)[0].phone))
    phone = desk.path[0].phone
    opens = desk.world.opens_at(phone)
    assert desk.say(f"call {phone} R1 ?email") == ["probe", "closed"]
    assert f"{opens}" in desk.heard
    for _ in range(opens - 2):
        assert desk.say("wait") == ["waited"]
    assert "closed" not in desk.say(f"call {phone} R1 ?email")


def carries_a_reference(world):
    return any(line.wants_reference for line in first_path(world)) and no_obstacle(world)


def test_a_reference_is_said_by_the_line_differs_by_seed_and_counts_as_a_bare_word():
    said = []
    for seed in (0, 1):
        desk = desk_where(4, carries_a_reference, seed=seed)
        assert desk.play_best(until="referred")[-1] == "referred"
        said.append(re.search(r"\bT\d{4}\b", desk.heard).group())
        assert desk.play_best()[-1] == "served"
    assert said[0] != said[1]


@pytest.mark.parametrize("text", ["reference=T0000x", "reference", "reference=T1234"])
@pytest.mark.parametrize(("screen_first", "code"), [(True, "must_call_first"), (False, "fabricated_auth")])
def test_a_reference_that_no_line_gave_is_fabricated(text, screen_first, code):
    def is_so(world):
        return carries_a_reference(world) and first_path(world)[-1].screen_first == screen_first

    desk = desk_where(4, is_so)
    assert desk.line.wants_reference
    desk.say(f"call {desk.line.phone} R1 {text}")
    assert desk.last.events[0].code == code


def test_of_two_values_the_first_is_wrong_and_the_second_counts():
    def is_simple(world):
        slips, first = dict(world.slips), first_path(world)[0]
        return slips and all(set(slips) <= needed for needed in first.sets) and first.phone not in world.busy

    desk = desk_where(3, is_simple)
    (field, wrong), right = desk.world.slips[0], desk.world.profile
    form = optimal_move(desk.world, desk.env.state)
    assert "two_values" in desk.say(STYLE.action_of(tool_call(desk.world, form)).text)
    assert desk.heard.index(wrong) < desk.heard.index(right[field])
    rest = " ".join(sorted(form.fields - {field}))
    call = f"call {desk.path[0].phone} R1"
    assert desk.say(f"{call} {field} {rest}") == ["auth_mismatch"]
    assert desk.say(f"{call} {field}={right[field]} {rest}")[-1] in ("referred", "served")


def test_two_departments_of_level_five_have_one_name_and_only_one_of_them_serves():
    for task in tasks_of(5):
        lines = world_of(task).company.departments
        names = [line.name for line in lines]
        assert len(names) == len(set(names)) + 1
        twins = [line for line in lines if names.count(line.name) == 2]
        assert sum(line.kind == "sales" for line in twins) == 1
        assert len({line.description for line in twins}) == 2


@pytest.mark.parametrize("level", ALL)
def test_the_ladder_adds_up_to_the_terminal_reward_and_no_priced_failure_beats_a_success(level):
    for task in tasks_of(level, 20):
        for policy in ("adaptive", "random", "prior_only", "noisy_adaptive"):
            actions, _, verdict = play_scripted(task, policy, seed=1, noise=0.3)
            env = started(task, 1, reward="ladder")
            rewards = [result.reward for result in replay(env, task, 1, actions)]
            assert sum(rewards) == pytest.approx(verdict.reward)
            assert env.verdict().reward == verdict.reward
            if verdict.success:
                assert any(reward not in (0.0, 1.0) for reward in rewards)
            env = started(task, 1, reward="priced")
            replay(env, task, 1, actions)
            priced = env.verdict().reward
            assert (priced >= 0.5) if verdict.success else (priced == 0.0)


def test_several_requests_are_all_needed():
    desk = desk_where(5, lambda world: no_obstacle(world) and len(world.requests) > 1)
    assert desk.play_best(until="served").count("served") == 1
    assert (desk.last.terminated, desk.env.verdict().success) == (False, False)
    desk.play_best()
    assert (desk.last.terminated, desk.env.verdict().success) == (True, True)
