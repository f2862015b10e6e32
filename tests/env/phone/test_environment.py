"""What is said, what may be sent and what it earns; the seed changes wording only, and nothing leaks."""

import re

import pytest

from env.phone.episode.environment import episode_cost
from env.phone.scripted.policies import play_scripted
from env.phone.solver.solver import optimal_move, tool_call
from env.phone.world.lexicon import FIELDS
from env.protocol import replay
from tests.env.phone.worlds import LEVELS, STYLE, Desk, first_fatal, level_tasks, started, world_of


def tasks_of(level, count=40):
    return level_tasks(level, 150, companies=60, seed=5)[:count]


def desk_where(level, holds, **kind):
    """Starts the first task whose world is like that."""
    return Desk(next(task for task in tasks_of(level, 150) if holds(world_of(task))), **kind)


def first_path(world):
    return world.path(world.requests[0])


@pytest.mark.parametrize("level", LEVELS)
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


FORM = ("form {needed}", "form")
SCRIPTS = {
    "success ends the episode": (1, [FORM, ("call {phone} R1 {needed}", "served")], 0.0),
    "there is no waiting below level 3": (2, [("wait", "unknown_tool")], 0),
    "so does a message without a call": (1, [("done", "none")], 0.0),
    "the turn limit truncates": (
        1,
        [("search x", "not_found")] * 7 + [("search x", "not_found max_turns")],
        0,
    ),
    "one form; a long one is not spent": (
        1,
        [
            ("form {four}", "form_too_long"),
            ("form {first} {lacking}", "form unavailable over_collected"),
            ("form {spare}", "form_already_submitted"),
        ],
        0.20,
    ),
    "probes and offers": (
        2,
        [("call {phone} R1", "probe auth_missing"), ("call {phone} R1 {offers}", "probe auth_missing")],
        0.06,
    ),
    "too little": (2, [("form {first}", "form"), ("call {phone} R1 {first}", "auth_missing")], 0.05),
    "made up, though it matches": (1, [("call {phone} R1 {first}={value}", "fabricated_auth")], 0.10),
    "made up": (1, [("call {phone} R1 {first}=0", "fabricated_auth")], 0.10),
    "pointed to before the form": (1, [("call {phone} R1 {first}", "fabricated_auth")], 0.10),
    "another field's value, then the right one written out": (
        1,
        [
            ("form {first} {spare}", "form over_collected"),
            ("call {phone} R1 {first}={other_value}", "auth_mismatch"),
            ("call {phone} R1 {first}={value}", "served"),
        ],
        0.10,
    ),
    "a wrong line": (1, [FORM, ("call {other} R1 {needed}", "wrong_department")], 0.05),
    "a wrong line passes on": (2, [FORM, ("call {other} R1 {needed}", "wrong_department served")], 0.05),
    "no such number": (1, [("call 911 R1", "probe invalid_number")], 0.03),
    "no such request": (1, [("call {phone} R2", "probe unknown_request")], 0.03),
}
FATAL = {
    "so does a message without a call": (0, "none"),
    "the turn limit truncates": (6, "max_turns"),  # a form and a call would have taken two
    "too little": (0, "form"),
}
"""script -> its first message after which nothing succeeds, with the code that its verdict gives."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_said_has_its_events_and_its_price(name):
    level, script, cost = SCRIPTS[name]
    desk = Desk(tasks_of(level)[0])
    profile, first, spare = desk.world.profile, desk.needed[0], desk.spare[0]
    words = {"first": first, "value": profile[first], "spare": spare, "other_value": profile[spare]}
    words |= {
        "phone": desk.line.phone,
        "other": next(line.phone for line in desk.world.company.departments if line != desk.line),
        "needed": " ".join(desk.needed),
        "offers": " ".join(f"?{field}" for field in desk.needed),
        "lacking": next(field for field in FIELDS if field not in profile),
        "four": " ".join(FIELDS[:4]),
    }
    for text, codes in script:
        said = text.format(**words)
        assert desk.say(said) == codes.split()
        event, given = desk.last.events[-1], desk.env.state.form or frozenset()
        if event.code == "auth_missing":
            assert set(event.fields) == set(desk.needed) - given
            assert desk.env.state.strikes_of(desk.line.phone) == bool(given)
        if event.code in ("fabricated_auth", "invalid_number"):
            assert desk.env.verdict().steps[-1].code == event.code
        if "wrong_department" in codes:
            assert desk.line.name in desk.last.events[0].detail
        if event.code == "unavailable":
            assert words["lacking"] in desk.heard
    assert episode_cost(desk.env.events) == pytest.approx(cost)
    assert (desk.last.terminated, desk.last.truncated) == (codes[-6:] in ("served", "none"), "max" in codes)
    success = "served" in codes
    assert (desk.last.reward, desk.env.verdict().success) == (float(success), success)
    assert (desk.env.feedback() is None) == success
    if name in FATAL:
        fatal, code = FATAL[name]
        step = desk.env.verdict().steps[fatal]
        assert (first_fatal(desk.env), step.status, step.code) == (fatal, "wrong", code)
    if desk.env.is_over:
        with pytest.raises(RuntimeError, match="after the end"):
            desk.say("done")


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


@pytest.mark.parametrize("level", LEVELS)
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


def test_a_defect_of_the_environment_is_no_failure_of_the_policy(monkeypatch):
    env = started(tasks_of(1)[0])
    monkeypatch.setattr("env.phone.episode.environment.place_call", lambda *a: 1 / 0)
    assert "ZeroDivisionError" in env.step(STYLE.parse("call 555-0000 R1")).infra_error
    verdict = env.verdict()
    assert (verdict.reward, verdict.success, env.feedback()) == (None, None, None)


def test_a_call_on_hold_is_told_with_its_id_and_a_probe_on_hold_is_priced_when_it_is_heard():
    desk = desk_where(3, lambda world: first_path(world)[0].phone in world.busy)
    assert desk.say(f"call {desk.path[0].phone} R1") == ["on_hold"]
    call_id = re.search(r"\bh\d+\b", desk.heard).group()
    assert desk.say(f"wait {call_id}x") == ["nothing_to_wait_for"]
    before = desk.env.verdict().cost
    assert desk.say(f"wait {call_id}")[0] == "probe"
    assert (before, desk.env.verdict().cost) == (0.0, pytest.approx(0.03))


def carries_a_reference(world):
    obstacles = world.busy or world.closings or world.slips
    return any(line.wants_reference for line in first_path(world)) and not obstacles


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


@pytest.mark.parametrize("level", LEVELS)
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
