"""Levels 3 to 5 as an agent meets them: what is said, what may be sent, what it earns."""

from __future__ import annotations

import re

import pytest

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import TOOLS, WAIT, tools_of
from env.phone.scripted.policies import play_scripted
from env.phone.solver.moves import tool_call
from env.phone.solver.solver import optimal_plan
from env.phone.world.levels import LEVELS
from env.phone.world.tasks import generate_tasks
from env.phone.world.world import WorldKey, make_world

STYLE = CompactStyle()


def level_tasks(level, count=150):
    tasks = generate_tasks(
        num_companies=60, num_train=count, num_val=1, num_test=1, level_shares={level: 1.0}, seed=5
    )
    return [task for task in tasks if task.split == "train"]


TASKS = {level: level_tasks(level) for level in (3, 4, 5)}


def world_of(task):
    return make_world(WorldKey.from_text(task.ground_truth))


def task_where(level, holds):
    """Returns the first task whose world is like that."""
    return next(task for task in TASKS[level] if holds(world_of(task)))


class Desk:
    """One episode played by commands."""

    def __init__(self, task, seed=0, **kind):
        self.env = PhoneEnv(**kind)
        self.env.reset(task, seed)
        self.rewards = []

    def say(self, text):
        self.last = self.env.step(STYLE.parse(text))
        self.rewards.append(self.last.reward)
        self.heard = self.last.messages[0]["content"] if self.last.messages else ""
        return [event.code for event in self.last.events]

    def play_best(self, until=None):
        """Plays a shortest plan up to the first event of a kind; returns the codes."""
        codes = []
        for move in optimal_plan(self.env.world, self.env.state):
            codes += self.say(STYLE.action_of(tool_call(self.env.world, move)).text)
            if until in codes:
                break
        return codes


def no_obstacle(world):
    return not (world.busy or world.closings or world.slips)


def test_the_directory_lists_hours_from_level_three_on():
    desk = Desk(TASKS[3][0])
    desk.say(f"search {desk.env.world.company.name}")
    for line in desk.env.world.company.departments:
        assert f"{line.name} {line.phone} {line.hours} {line.description}" in desk.heard
    assert {line.hours for task in TASKS[3] for line in world_of(task).company.departments} == {"24h", "day"}


def test_wait_is_a_tool_from_level_three_on():
    names = {level: [tool["function"]["name"] for tool in tools_of(LEVELS[level])] for level in LEVELS}
    assert [WAIT in names[level] for level in LEVELS] == [False, False, True, True, True]
    assert len(TOOLS) == 4
    assert Desk(TASKS[3][0]).env.spec.tools == TOOLS


def test_a_call_on_hold_is_told_with_its_id_and_taken_when_it_is_waited_for():
    task = task_where(3, lambda world: world.busy)
    desk = Desk(task)
    codes = desk.play_best(until="on_hold")
    assert codes[-1] == "on_hold"
    call_id = re.search(r"\bh\d+\b", desk.heard).group()
    assert desk.say(f"wait {call_id}x") == ["nothing_to_wait_for"]
    assert desk.say(f"wait {call_id}")[-1] in ("referred", "served")


def test_a_probe_on_hold_is_priced_once_and_only_when_it_is_heard():
    task = task_where(3, lambda world: world.path(world.requests[0])[0].phone in world.busy)
    desk = Desk(task)
    line = desk.env.world.path(desk.env.world.requests[0])[0]
    assert desk.say(f"call {line.phone} R1") == ["on_hold"]
    assert desk.env.verdict().cost == 0.0
    assert desk.say("wait")[0] == "probe"
    assert desk.env.verdict().cost == pytest.approx(0.03)


def test_a_closed_line_tells_when_it_opens_and_waiting_gets_there():
    def closed_at_once(world):
        return any(phone == world.path(world.requests[0])[0].phone for phone, _ in world.closings)

    desk = Desk(task_where(4, closed_at_once))
    world = desk.env.world
    line = world.path(world.requests[0])[0]
    opens = world.opens_at(line.phone)
    assert desk.say(f"call {line.phone} R1 ?email") == ["probe", "closed"]
    assert f"{opens}" in desk.heard
    for _ in range(opens - 2):
        assert desk.say("wait") == ["waited"]
    assert "closed" not in desk.say(f"call {line.phone} R1 ?email")


def test_a_reference_is_said_by_the_line_differs_by_seed_and_counts_as_a_bare_word():
    task = task_where(4, lambda w: any(x.token for x in w.path(w.requests[0])) and no_obstacle(w))
    said = []
    for seed in (0, 1):
        desk = Desk(task, seed)
        assert desk.play_best(until="referred")[-1] == "referred"
        said.append(re.search(r"\bT\d{4}\b", desk.heard).group())
        assert desk.play_best()[-1] == "served"
    assert said[0] != said[1]


@pytest.mark.parametrize("text", ["reference=T0000x", "reference", "reference=T1234"])
def test_a_reference_that_no_line_gave_is_fabricated(text):
    task = task_where(4, lambda w: any(x.token for x in w.path(w.requests[0])) and no_obstacle(w))
    desk = Desk(task)
    line = next(x for x in desk.env.world.path(desk.env.world.requests[0]) if x.token)
    desk.say(f"call {line.phone} R1 {text}")
    if not line.screen_first:
        assert desk.last.events[0].code == "fabricated_auth"
    else:
        assert desk.last.events[0].code == "must_call_first"


def test_of_two_values_the_first_is_wrong_and_the_second_counts():
    def is_simple(world):
        first = world.path(world.requests[0])[0]
        slips = dict(world.slips)
        return slips and all(set(slips) <= needed for needed in first.sets) and first.phone not in world.busy

    task = task_where(3, is_simple)
    desk = Desk(task)
    world = desk.env.world
    (field, wrong), first = world.slips[0], world.path(world.requests[0])[0]
    form = optimal_plan(world, desk.env.state)[0]
    assert form.kind == "form"
    codes = desk.say(STYLE.action_of(tool_call(world, form)).text)
    assert "two_values" in codes
    assert desk.heard.index(wrong) < desk.heard.index(world.profile[field])
    rest = " ".join(sorted(form.fields - {field}))
    assert desk.say(f"call {first.phone} R1 {field} {rest}") == ["auth_mismatch"]
    right = f"{field}={world.profile[field]}"
    assert desk.say(f"call {first.phone} R1 {right} {rest}")[-1] in ("referred", "served")


def test_two_departments_of_level_five_have_one_name_and_only_one_of_them_serves():
    for task in TASKS[5][:40]:
        world = world_of(task)
        names = [line.name for line in world.company.departments]
        assert len(names) == len(set(names)) + 1
        twins = [x for x in world.company.departments if names.count(x.name) == 2]
        assert sum(x.kind == "sales" for x in twins) == 1
        assert len({x.description for x in twins}) == 2


def test_the_ladder_adds_up_to_the_terminal_reward():
    for level in (3, 4, 5):
        for task in TASKS[level][:20]:
            for policy in ("adaptive", "random", "prior_only"):
                actions, _, verdict = play_scripted(task, policy, seed=1)
                desk = Desk(task, seed=1, reward="ladder")
                for action in actions:
                    desk.say(action.text)
                assert sum(desk.rewards) == pytest.approx(verdict.reward)
                assert desk.env.verdict().reward == verdict.reward
                if verdict.success:
                    assert any(reward not in (0.0, 1.0) for reward in desk.rewards)


def test_the_priced_reward_puts_every_success_above_every_failure():
    for level in (3, 4, 5):
        for task in TASKS[level][:20]:
            for policy in ("adaptive", "prober", "noisy_adaptive"):
                env = PhoneEnv(reward="priced")
                verdict = play_scripted(task, policy, seed=5, noise=0.3, env=env)[2]
                assert (verdict.reward >= 0.5) if verdict.success else (verdict.reward == 0.0)


def test_several_requests_are_all_needed():
    task = task_where(5, lambda world: no_obstacle(world) and len(world.requests) > 1)
    desk = Desk(task)
    codes = desk.play_best(until="served")
    assert codes.count("served") == 1
    assert not desk.last.terminated
    assert desk.env.verdict().success is False
    desk.play_best()
    assert desk.last.terminated
    assert desk.env.verdict().success
