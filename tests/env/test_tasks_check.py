"""What `make_tasks` and `reset` give back is looked at before it is stored, and named where it is wrong."""

import math
import random
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from env.catalog import BUILT_IN, offer_of
from env.offer import EnvironmentOffer
from env.protocol import Observation
from env.tasks_check import replay_problem, tasks_problem
from env.unplayed import unplayed
from pipeline.errors import ConfigError
from pipeline.types import Task
from tests.env.test_splitters import Notebook

SHORT = offer_of("short")
USER = {"role": "user", "content": "say"}


def task(of: str, name: str, **changes: Any) -> Task:
    return replace(Task(name, "n", of, 1, (USER,), "rule", "", "", name, 0), **changes)


GOOD = [task("train", "a"), task("val", "b")]


def problem_of(tasks: list[Any], **options: bool) -> str:
    return tasks_problem(tasks, ("train", "val", "test"), **options)


def test_tasks_of_train_and_val_are_enough() -> None:
    assert problem_of(GOOD) == ""
    assert problem_of([*GOOD, task("test", "c", prompt=[USER | {"role": "system"}, USER])]) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task_id": ""}, "task 3, '': task_id is ''; allowed: a text that says something"),
        ({"task_id": 3}, "task_id is 3; allowed: Unicode text"),
        ({"task_id": "a"}, "tasks 1 and 3 have one task_id, 'a'; allowed: each its own"),
        ({"cluster": None}, "task 3, 'c': cluster is None; allowed: Unicode text"),
        ({"cluster": " "}, "cluster is ' '; allowed: a text that says something"),
        ({"ground_truth": 300}, "ground_truth is 300; allowed: Unicode text"),
        ({"ability": "\ud800"}, r"ability is '\ud800'; allowed: Unicode text"),
        ({"split": "validation"}, "split is 'validation'; allowed: train, val, test, the splits"),
        ({"level": "easy"}, "level is 'easy'; allowed: a whole number from 1"),
        ({"level": 0}, "level is 0; allowed: a whole number from 1"),
        ({"level": True}, "level is True; allowed: a whole number"),
        ({"index": 1.0}, "index is 1.0; allowed: a whole number from 0"),
        ({"index": 2**31}, "index is 2147483648; allowed: a whole number from 0"),
        ({"details": None}, "details are None; allowed: a dict that JSON can hold, without NaN"),
        ({"details": {"a": {1}}}, "details are {'a': {1}}; allowed: a dict that JSON can hold"),
        ({"details": {"a": math.nan}}, "details are {'a': nan}; allowed: a dict that JSON can hold"),
        ({"prompt": "say"}, "prompt: messages is a str; allowed: tuple of dict"),
        ({"prompt": (3,)}, "prompt: messages: it is a int; allowed: dict"),
        (
            {"prompt": ({1: "user", "role": "user"},)},
            "message 1 has keys [1, 'role']; allowed: role and content",
        ),
        ({"prompt": ()}, "prompt: it says nothing: (); allowed: a message with content"),
        ({"prompt": (USER | {"content": " "},)}, "allowed: a message with content"),
        ({"prompt": (USER | {"content": None},)}, "prompt: message 1 holds what is no Unicode text"),
        ({"prompt": (USER | {"content": "\ud800"},)}, "prompt: message 1 holds what is no Unicode text"),
        ({"prompt": (USER, USER | {"role": "human"})}, "message 2 has role 'human'; allowed: system, user, "),
        ({"prompt": ({"role": "user"},)}, "message 1 has keys ['role']; allowed: role and content"),
        ({"prompt": (USER | {"tool_call_id": "x"},)}, "a message has tool_call_id; allowed: role, content"),
    ],
)
def test_a_task_that_no_stage_can_use_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in problem_of([*GOOD, task("test", "c", **changes)])


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([], "no task of 0 is of train or val; allowed: at least one of each"),
        (GOOD[:1], "no task of 1 is of val; allowed"),
        ([*GOOD, "c"], "item 3 is 'c'; allowed: pipeline.types.Task"),
        ([*GOOD, {"task_id": "c"}], "item 3 is {'task_id': 'c'}; allowed: pipeline.types.Task"),
        (
            [*GOOD, task("test", "c", cluster="a")],
            "task 'c' of test has the cluster 'a', as has 'a' of train; allowed: clusters that",
        ),
        ([*GOOD, task("val", "c", cluster="a")], "or val_shares_clusters=True in the offer"),
    ],
)
def test_a_list_that_no_stage_can_use_is_refused_whole(tasks: list[Any], said: str) -> None:
    assert said in problem_of(tasks)


def test_only_val_may_share_clusters_with_train_and_only_if_the_offer_says_so() -> None:
    assert problem_of([*GOOD, task("val", "c", cluster="a")], val_shares_clusters=True) == ""
    assert problem_of([*GOOD, task("test", "c", cluster="a")], val_shares_clusters=True) != ""
    assert problem_of([*GOOD, task("test", "c", cluster="b")], val_shares_clusters=True) != ""
    assert problem_of([*GOOD, task("test", "c", cluster="d"), task("test", "e", cluster="d")]) == ""


def made(make_tasks: Any) -> Any:
    return replace(SHORT, make_tasks=make_tasks).task_set(SHORT.settings(), 0)


def test_what_make_tasks_makes_is_checked_where_an_offer_is_asked_for_tasks() -> None:
    assert made(lambda settings, seed: iter(GOOD)) == (GOOD, [])
    with pytest.raises(ConfigError, match=r"^the environment short: make_tasks makes .*no task of 0.*Next: "):
        made(lambda settings, seed: [])


@pytest.mark.parametrize(
    ("make_tasks", "said"),
    [
        (lambda settings, seed: {}["metres.csv"], "make_tasks fails: KeyError: 'metres.csv'. Next: "),
        (lambda settings, seed: None, "make_tasks fails: TypeError: 'NoneType' object is not iterable"),
        (lambda settings, seed: (1 / 0 for _ in "a"), "make_tasks fails: ZeroDivisionError"),
    ],
)
def test_an_exception_of_make_tasks_names_the_environment_and_stays_the_cause(
    make_tasks: Any, said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        made(make_tasks)
    assert f"the environment short: {said}" in str(raised.value)
    assert raised.value.__cause__ is not None


def test_what_make_tasks_refuses_itself_is_said_in_its_own_words() -> None:
    def refuse(settings: Any, seed: int) -> list[Task]:
        raise ConfigError("no such unit")

    with pytest.raises(ConfigError, match=r"^no such unit$"):
        made(refuse)


class Opening(Notebook):
    """Opens with whatever it was made with, called once for each reset."""

    def __init__(self, opening: Any) -> None:
        self.opening = opening

    def reset(self, task: Task, seed: int) -> Any:
        return self.opening()


NUMBERS, LENGTHS = count(), count(1)


@pytest.mark.parametrize(
    ("opening", "said"),
    [
        (lambda: None, "it is a NoneType; allowed: Observation"),
        (lambda: (Observation((USER,)), {}), "it is a tuple; allowed: Observation"),
        (lambda: Observation("say"), "cannot be used: messages is a str; allowed: tuple of dict"),  # type: ignore
        (lambda: Observation(()), "cannot be used: it says nothing"),
        (lambda: Observation((USER | {"role": "human"},)), "message 1 has role 'human'; allowed: system"),
        (
            lambda: Observation((USER, {"role": "user", "content": f"{'go ' * 30}{next(NUMBERS)}"})),
            "draws at random: reset with one seed gives 'o go go go go go go 0', then "
            "'o go go go go go go 1'; allowed: the same each time",
        ),
        (lambda: Observation((USER,) * next(LENGTHS)), "gives '1 messages', then '2 messages'"),
    ],
)
def test_an_opening_that_no_stage_can_use_is_named(opening: Any, said: str) -> None:
    assert said in replay_problem(Opening(opening), GOOD[0])


def opened(make_env: Any) -> None:
    replace(SHORT, make_env=make_env).check_openings(SHORT.settings(), GOOD)


def test_the_first_task_of_each_split_is_opened_before_tasks_are_stored() -> None:
    seen: list[Any] = []

    class Noting(Notebook):
        def reset(self, task: Task, seed: int) -> Observation:
            seen.append((task.task_id, seed))
            return super().reset(task, seed)

        def close(self) -> None:
            raise RuntimeError("closed twice")

    replace(SHORT, make_env=lambda *_: Noting()).check_openings(SHORT.settings(), [*GOOD, task("val", "c")])
    assert seen == [("a", 0), ("a", 0), ("b", 0), ("b", 0)]
    with pytest.raises(ConfigError, match=r"short: task a of train cannot be opened: the .* at random"):
        opened(lambda *_: Opening(lambda: Observation((USER | {"content": str(random.random())},))))
    with pytest.raises(ConfigError, match=r"FileNotFoundError: metres\.csv") as raised:
        opened(lambda *_: Opening(lambda: (_ for _ in ()).throw(FileNotFoundError("metres.csv"))))
    assert isinstance(raised.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize("name", [*(name for name in BUILT_IN if name != "short"), "math+get_feedback"])
def test_built_in_environments_open_their_tasks_without_a_sandbox(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> None:
        raise AssertionError("a sandbox was started")

    monkeypatch.setattr("env.sandbox.sandbox.Sandbox.__init__", start)
    offer = offer_of(name)
    settings = offer.settings(num_train=2, num_held_out=1)
    offer.check_openings(settings, offer.task_set(settings, 0).tasks)


def test_sessions_that_nobody_can_play_open_as_they_were_recorded() -> None:
    offer = unplayed("support", [])
    offer.check_openings(offer.settings(), GOOD)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"splitter": "line"}, "splitter is 'line'; allowed: message, lines, blocks"),
        ({"styles": {}}, "styles is empty; allowed: at least one prompt style"),
        ({"splits": ("train", "test")}, "splits are train, test; allowed: train, val, then test splits"),
        ({"splits": ("val", "train")}, "splits are val, train; allowed: train, val, then"),
        ({"splits": ("train", "val", "val")}, "splits are train, val, val; allowed: train, val, then"),
        (
            {"demonstrators": SimpleNamespace(shares={"careful": 1.5, "rash": -0.5})},
            "demonstrators.shares gives rash -0.5; allowed: 0 and above",
        ),
        (
            {"demonstrators": SimpleNamespace(shares={"rash": math.nan})},
            "gives rash nan; allowed: 0",
        ),
    ],
)
def test_an_offer_that_cannot_be_used_is_refused_when_it_is_made(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        replace(SHORT, **changes)
    assert str(raised.value).startswith("the environment short: ")
    assert said in str(raised.value)
    assert isinstance(replace(SHORT, splits=("train", "val")), EnvironmentOffer)
